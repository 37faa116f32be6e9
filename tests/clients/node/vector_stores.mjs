// `/vector_stores`.

import assert from 'node:assert/strict';

import { BadRequestError, NotFoundError, all, collected, ingested, refused, uploaded } from './rows.mjs';

const { rows, row } = collected();
export default rows;

row('POST', '/vector_stores', 'nothing asked: a store without a name', async ({ client }) => {
  const store = await client.vectorStores.create({});
  assert.deepEqual([store.object, store.name, store.status], ['vector_store', '', 'completed']);
  assert.deepEqual([store.usage_bytes, store.file_counts.total], [0, 0]);
  assert.match(store.id, /^vs_/);
});

row('POST', '/vector_stores', 'with files, metadata, chunking and an expiry', async (given) => {
  const { client } = given;
  const store = await client.vectorStores.create({
    name: 'shelf',
    description: 'books',
    file_ids: [await uploaded(given, 'a.txt'), await uploaded(given, 'b.txt')],
    metadata: { site: 'north' },
    chunking_strategy: { type: 'static', static: { max_chunk_size_tokens: 200, chunk_overlap_tokens: 50 } },
    expires_after: { anchor: 'last_active_at', days: 3 },
  });
  assert.deepEqual([store.name, store.metadata, store.file_counts.total], ['shelf', { site: 'north' }, 2]);
  assert.equal(store.expires_after.days, 3);
  assert.equal(store.expires_at, store.last_active_at + 3 * 86_400);
  for (const file of await all(client.vectorStores.files.list(store.id))) {
    const done = await client.vectorStores.files.poll(store.id, file.id);
    assert.equal(done.status, 'completed');
    assert.equal(done.chunking_strategy.static.max_chunk_size_tokens, 200);
  }
});

row('POST', '/vector_stores', 'a file nobody knows: 404; a bad expiry: 400', async ({ client }) => {
  await refused(NotFoundError, client.vectorStores.create({ file_ids: ['file-unknown'] }));
  await refused(
    BadRequestError,
    client.vectorStores.create({ expires_after: { anchor: 'last_active_at', days: 366 } }),
    { param: 'expires_after.days', code: 'integer_above_max_value' },
  );
});

row(
  'GET',
  '/vector_stores',
  'pages by after and before, in both orders',
  async ({ client: { vectorStores: stores }, animals }) => {
    const ids = (found) => found.map((store) => store.id);
    const made = [];
    for (let n = 0; n < 4; n++) made.push((await stores.create({ name: `page ${n}` })).id);
    const newestFirst = ids(await all(stores.list({ limit: 2 })));
    assert.deepEqual(newestFirst.toSorted(), [...made, animals].toSorted());
    assert.deepEqual(ids(await all(stores.list({ limit: 3, order: 'asc' }))), newestFirst.toReversed());
    const after = await stores.list({ after: newestFirst[1], limit: 2 });
    assert.deepEqual([ids(after.data), after.has_more], [newestFirst.slice(2, 4), true]);
    const before = await stores.list({ before: newestFirst[1] });
    assert.deepEqual(ids(before.data), newestFirst.slice(0, 1));
    await refused(BadRequestError, stores.list({ limit: 101 }), { param: 'limit' });
  },
  { alone: true },
);

row('GET', '/vector_stores/{vector_store_id}', 'live counts and status; unknown: 404', async ({ client, animals }) => {
  const store = await client.vectorStores.retrieve(animals);
  assert.deepEqual(store.file_counts, { completed: 2, in_progress: 0, failed: 0, cancelled: 0, total: 2 });
  assert.deepEqual([store.name, store.status], ['animals', 'completed']);
  assert.ok(store.usage_bytes > 0, 'it takes no space');
  await refused(NotFoundError, client.vectorStores.retrieve('vs_unknown'));
});

row('POST', '/vector_stores/{vector_store_id}', 'absent keeps, null clears', async ({ client: { vectorStores: stores } }) => {
  const { id } = await stores.create({
    name: 'old',
    metadata: { a: '1' },
    expires_after: { anchor: 'last_active_at', days: 1 },
  });
  const named = await stores.update(id, { name: 'new' });
  assert.deepEqual([named.name, named.metadata], ['new', { a: '1' }]);
  assert.ok(named.expires_after, 'the expiry is lost');
  const cleared = await stores.update(id, { metadata: null, expires_after: null });
  assert.deepEqual([cleared.name, cleared.metadata ?? {}, cleared.expires_after ?? null], ['new', {}, null]);
  await refused(NotFoundError, stores.update('vs_unknown', { name: 'x' }));
});

row('DELETE', '/vector_stores/{vector_store_id}', 'the files stay; again: 404', async (given) => {
  const { client } = given;
  const { id } = await client.vectorStores.create({ name: 'brief' });
  const file = await ingested(given, id, 'brief.txt', 'Brief is the day of a mayfly.');
  assert.deepEqual(await client.vectorStores.delete(id), { id, object: 'vector_store.deleted', deleted: true });
  assert.equal((await client.files.retrieve(file)).id, file);
  await refused(NotFoundError, client.vectorStores.search(id, { query: 'mayfly' }));
  await refused(NotFoundError, client.vectorStores.delete(id));
});
