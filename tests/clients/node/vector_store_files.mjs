// `/vector_stores/{vector_store_id}/files`.

import assert from 'node:assert/strict';

import { toFile } from 'openai';

import { BadRequestError, NotFoundError, all, collected, ingested, refused, uploaded } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const FILES = '/vector_stores/{vector_store_id}/files';
const FILE = `${FILES}/{file_id}`;

const chunksOf = (max_chunk_size_tokens) => ({
  type: 'static',
  static: { max_chunk_size_tokens, chunk_overlap_tokens: 0 },
});
const newStore = async ({ client }) => (await client.vectorStores.create({})).id;
const ids = (found) => found.map((file) => file.id);

row('POST', FILES, 'at once, with attributes and chunking; twice is once', async (given) => {
  const { files } = given.client.vectorStores;
  const [store, file_id] = [await newStore(given), await uploaded(given)];
  const attributes = { year: 2024, draft: false, team: 'north' };
  const attached = await files.create(store, { file_id, attributes, chunking_strategy: chunksOf(100) });
  assert.deepEqual(
    [attached.id, attached.object, attached.vector_store_id],
    [file_id, 'vector_store.file', store],
  );
  assert.ok(['in_progress', 'completed'].includes(attached.status), attached.status);
  assert.deepEqual(attached.attributes, attributes);
  const again = await files.create(store, { file_id });
  assert.deepEqual([again.id, again.created_at], [file_id, attached.created_at]);
  const done = await files.poll(store, file_id);
  assert.deepEqual([done.status, done.chunking_strategy.type], ['completed', 'static']);
  assert.equal((await given.client.vectorStores.retrieve(store)).file_counts.total, 1);
});

row('POST', FILES, 'bad attributes and chunking: 400; unknown ids: 404', async (given) => {
  const { files } = given.client.vectorStores;
  const [store, file_id] = [await newStore(given), await uploaded(given)];
  await refused(BadRequestError, files.create(store, { file_id, attributes: { a: 'v'.repeat(513) } }), {
    param: 'attributes.a',
    code: 'string_above_max_length',
  });
  await refused(BadRequestError, files.create(store, { file_id, chunking_strategy: chunksOf(99) }), {
    param: 'chunking_strategy.static.max_chunk_size_tokens',
  });
  await refused(NotFoundError, files.create(store, { file_id: 'file-unknown' }));
  await refused(NotFoundError, files.create('vs_unknown', { file_id }));
  assert.equal((await given.client.vectorStores.retrieve(store)).file_counts.total, 0);
});

row('POST', FILES, 'upload_and_poll ends completed and searchable', async (given) => {
  const store = await newStore(given);
  const done = await given.client.vectorStores.files.uploadAndPoll(
    store,
    await toFile(Buffer.from('Badgers dig setts.'), 'badger.txt'),
  );
  assert.deepEqual([done.status, done.last_error], ['completed', null]);
  const { data } = await given.client.vectorStores.search(store, { query: 'badgers' });
  assert.deepEqual(
    data.map((hit) => hit.filename),
    ['badger.txt'],
  );
});

row('POST', FILES, 'a file that cannot be read ends failed, with the reason', async (given) => {
  const { client } = given;
  const store = await newStore(given);
  const empty = await toFile(Buffer.from('  \n '), 'empty.txt');
  const done = await client.vectorStores.files.uploadAndPoll(store, empty);
  assert.deepEqual([done.status, done.last_error?.code], ['failed', 'invalid_file']);
  const image = await client.files.create({
    file: await toFile(Buffer.from('\x89PNG\r\n\x1a\n\0', 'latin1'), 'a.png'),
    purpose: 'vision',
  });
  const failed = await client.vectorStores.files.createAndPoll(store, { file_id: image.id });
  assert.deepEqual([failed.status, failed.last_error?.code], ['failed', 'unsupported_file']);
  const { file_counts: counts } = await client.vectorStores.retrieve(store);
  assert.deepEqual([counts.failed, counts.in_progress, counts.total], [2, 0, 2]);
});

row('GET', FILES, "by status, in pages; the id is the file's", async (given) => {
  const { files } = given.client.vectorStores;
  const file_ids = await Promise.all(['0.txt', '1.txt', '2.txt'].map((name) => uploaded(given, name)));
  const { id: store } = await given.client.vectorStores.create({ file_ids });
  const empty = await uploaded(given, 'empty.txt', ' ');
  await files.createAndPoll(store, { file_id: empty });
  for (const file of await all(files.list(store))) await files.poll(store, file.id);
  assert.deepEqual(ids(await all(files.list(store, { filter: 'failed' }))), [empty]);
  const completed = ids(await all(files.list(store, { filter: 'completed', limit: 2 })));
  assert.deepEqual(completed.toSorted(), file_ids.toSorted());
  assert.equal(ids(await all(files.list(store, { limit: 3, order: 'asc' }))).at(-1), empty);
  const first = await files.list(store, { limit: 1 });
  assert.deepEqual([first.data[0].id, first.has_more], [empty, true]);
  assert.deepEqual((await files.list(store, { filter: 'in_progress' })).data, []);
});

row('GET', FILE, 'says when to ask again, and last_error is there', async ({ client, animals, mouse }) => {
  const { data: file, response } = await client.vectorStores.files
    .retrieve(mouse, { vector_store_id: animals })
    .withResponse();
  const wait = Number(response.headers.get('openai-poll-after-ms'));
  assert.ok(wait >= 200 && wait <= 1000, 'it says no sensible time to wait');
  assert.deepEqual([file.id, file.status, file.last_error], [mouse, 'completed', null]);
  await refused(
    NotFoundError,
    client.vectorStores.files.retrieve('file-unknown', { vector_store_id: animals }),
  );
});

row('POST', FILE, 'attributes are replaced, and search sees it', async (given) => {
  const { vectorStores } = given.client;
  const store = await newStore(given);
  const file = await ingested(given, store, 'fox.txt', 'Foxes are red.', { a: 1, b: 'x' });
  const changed = await vectorStores.files.update(file, { vector_store_id: store, attributes: { c: true } });
  assert.deepEqual(changed.attributes, { c: true });
  const found = async (key, value) =>
    (await vectorStores.search(store, { query: 'foxes', filters: { type: 'eq', key, value } })).data;
  assert.deepEqual(
    (await found('c', true)).map((hit) => hit.attributes),
    [{ c: true }],
  );
  assert.deepEqual(await found('a', 1), []);
  const cleared = await vectorStores.files.update(file, { vector_store_id: store, attributes: null });
  assert.deepEqual(cleared.attributes ?? {}, {});
});

row('DELETE', FILE, 'counts drop, search forgets it, the file stays; again: 404', async (given) => {
  const { client } = given;
  const store = await newStore(given);
  const file = await ingested(given, store, 'elk.txt', 'Elks swim well.');
  const deleted = await client.vectorStores.files.delete(file, { vector_store_id: store });
  assert.deepEqual(deleted, { id: file, object: 'vector_store.file.deleted', deleted: true });
  assert.equal((await client.vectorStores.retrieve(store)).file_counts.total, 0);
  assert.deepEqual((await client.vectorStores.search(store, { query: 'elks' })).data, []);
  assert.equal((await client.files.retrieve(file)).id, file);
  await refused(NotFoundError, client.vectorStores.files.delete(file, { vector_store_id: store }));
});

row('GET', `${FILE}/content`, 'the whole text in one page', async (given) => {
  const store = await newStore(given);
  const text = Array.from(
    { length: 2_000 },
    (_, n) => `Paragraph ${n} is about owls and about nothing else.`,
  ).join('\n\n');
  const file = await ingested(given, store, 'long.txt', text);
  const page = await given.client.vectorStores.files.content(file, { vector_store_id: store });
  assert.ok(page.data.map((part) => part.text).join('') === text);
  assert.equal(page.data[0].type, 'text');
  assert.deepEqual([page.object, page.body.has_more], ['vector_store.file_content.page', false]);
});
