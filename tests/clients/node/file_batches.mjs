// `/vector_stores/{vector_store_id}/file_batches`.

import assert from 'node:assert/strict';

import { toFile } from 'openai';

import { BadRequestError, NotFoundError, all, collected, ingested, refused, uploaded } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const BATCHES = '/vector_stores/{vector_store_id}/file_batches';
const BATCH = `${BATCHES}/{batch_id}`;

const newStore = async ({ client }) => (await client.vectorStores.create({})).id;
const newFiles = (given, count, text) =>
  Promise.all(Array.from({ length: count }, (_, n) => uploaded(given, `${n}.txt`, text)));

row('POST', BATCHES, 'file_ids with shared attributes, polled to the end', async (given) => {
  const { vectorStores } = given.client;
  const store = await newStore(given);
  const file_ids = await newFiles(given, 3, 'This note is about newts.');
  const made = await vectorStores.fileBatches.create(store, { file_ids, attributes: { kind: 'note' } });
  assert.deepEqual([made.object, made.vector_store_id], ['vector_store.file_batch', store]);
  assert.match(made.id, /^vsfb_/);
  assert.deepEqual([made.status, made.file_counts.total], ['in_progress', 3]);
  const done = await vectorStores.fileBatches.poll(store, made.id);
  const { completed, in_progress } = done.file_counts;
  assert.deepEqual([done.status, completed, in_progress], ['completed', 3, 0]);
  const { data } = await vectorStores.search(store, { query: 'newts' });
  // The same text is found once, wherever it stands.
  assert.equal(data.length, 1);
  assert.ok(file_ids.includes(data[0].file_id));
  for (const hit of data) assert.deepEqual(hit.attributes, { kind: 'note' });
});

row('POST', BATCHES, 'files with attributes and chunking of their own', async (given) => {
  const { vectorStores } = given.client;
  const store = await newStore(given);
  const [first, second] = await newFiles(given, 2);
  const chunking_strategy = {
    type: 'static',
    static: { max_chunk_size_tokens: 100, chunk_overlap_tokens: 10 },
  };
  const done = await vectorStores.fileBatches.createAndPoll(store, {
    files: [
      { file_id: first, attributes: { n: 1 } },
      { file_id: second, chunking_strategy },
    ],
  });
  assert.deepEqual([done.status, done.file_counts.completed], ['completed', 2]);
  const files = Object.fromEntries((await all(vectorStores.files.list(store))).map((file) => [file.id, file]));
  assert.deepEqual([files[first].attributes, files[second].attributes ?? {}], [{ n: 1 }, {}]);
  assert.equal(files[second].chunking_strategy.static.max_chunk_size_tokens, 100);
});

row('POST', BATCHES, 'upload_and_poll, one file without text among them', async (given) => {
  const { vectorStores } = given.client;
  const store = await newStore(given);
  const texts = { 'newt.txt': 'Newts swim.', 'toad.txt': 'Toads hop.', 'empty.txt': ' ' };
  const files = await Promise.all(
    Object.entries(texts).map(([name, text]) => toFile(Buffer.from(text), name)),
  );
  const done = await vectorStores.fileBatches.uploadAndPoll(store, { files });
  const { completed, failed, in_progress } = done.file_counts;
  assert.deepEqual([done.status, completed, failed, in_progress], ['completed', 2, 1, 0]);
  assert.equal((await vectorStores.search(store, { query: 'newts swim, toads hop' })).data.length, 2);
});

row('POST', BATCHES, 'file_ids or files, not both, not neither, no unknown ones', async (given) => {
  const { vectorStores } = given.client;
  const [store, file] = [await newStore(given), await uploaded(given)];
  const made = (body, id = store) => vectorStores.fileBatches.create(id, body);
  await refused(BadRequestError, made({ files: [] }));
  await refused(BadRequestError, made({ file_ids: [file], files: [{ file_id: file }] }));
  await refused(BadRequestError, made({ file_ids: [] }), { param: 'file_ids' });
  await refused(BadRequestError, made({ file_ids: Array(2001).fill(file) }), { param: 'file_ids' });
  await refused(NotFoundError, made({ file_ids: [file, 'file-unknown'] }));
  await refused(NotFoundError, made({ file_ids: [file] }, 'vs_unknown'));
  assert.equal((await vectorStores.retrieve(store)).file_counts.total, 0);
});

row('GET', BATCH, 'status and counts in step, says when to ask again; unknown: 404', async (given) => {
  const { fileBatches } = given.client.vectorStores;
  const store = await newStore(given);
  const { id } = await fileBatches.create(store, { file_ids: await newFiles(given, 2) });
  let batch;
  do {
    const answer = await fileBatches.retrieve(id, { vector_store_id: store }).withResponse();
    const wait = Number(answer.response.headers.get('openai-poll-after-ms'));
    assert.ok(wait >= 200 && wait <= 1000, 'it says no sensible time to wait');
    batch = answer.data;
    assert.equal(batch.file_counts.total, 2);
    assert.equal(batch.status === 'in_progress', batch.file_counts.in_progress > 0);
  } while (batch.status === 'in_progress');
  assert.deepEqual([batch.status, batch.file_counts.completed], ['completed', 2]);
  await refused(NotFoundError, fileBatches.retrieve('vsfb_unknown', { vector_store_id: store }));
  await refused(NotFoundError, fileBatches.retrieve(id, { vector_store_id: given.animals }));
});

row('POST', `${BATCH}/cancel`, 'without a body; nothing stays in progress', async (given) => {
  const { fileBatches } = given.client.vectorStores;
  const store = await newStore(given);
  const file_ids = await newFiles(given, 5, 'Newts. '.repeat(2_000));
  const { id } = await fileBatches.create(store, { file_ids });
  assert.equal((await fileBatches.cancel(id, { vector_store_id: store })).id, id);
  const done = await fileBatches.poll(store, id);
  assert.ok(['cancelled', 'completed'].includes(done.status), done.status);
  const { in_progress, cancelled, completed } = done.file_counts;
  assert.deepEqual([in_progress, cancelled + completed], [0, 5]);
  await refused(NotFoundError, fileBatches.cancel('vsfb_unknown', { vector_store_id: store }));
});

row('GET', `${BATCH}/files`, 'by status, in pages, only those of the batch', async (given) => {
  const { fileBatches } = given.client.vectorStores;
  const store = await newStore(given);
  await ingested(given, store, 'other.txt', 'Not of the batch.');
  const file_ids = await newFiles(given, 3);
  const empty = await uploaded(given, 'empty.txt', ' ');
  const { id } = await fileBatches.createAndPoll(store, { file_ids: [...file_ids, empty] });
  const listed = (options) => all(fileBatches.listFiles(id, { vector_store_id: store, ...options }));
  const ids = (found) => found.map((file) => file.id).toSorted();
  assert.deepEqual(ids(await listed({ limit: 2 })), [...file_ids, empty].toSorted());
  assert.deepEqual(ids(await listed({ filter: 'completed' })), file_ids.toSorted());
  const failed = await listed({ filter: 'failed' });
  assert.deepEqual(
    failed.map((file) => [file.id, file.last_error?.code]),
    [[empty, 'invalid_file']],
  );
  await refused(NotFoundError, fileBatches.listFiles('vsfb_unknown', { vector_store_id: store }));
});
