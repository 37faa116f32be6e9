// `/files`.

import assert from 'node:assert/strict';
import { createReadStream } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { toFile } from 'openai';

import { BadRequestError, NotFoundError, all, collected, ingested, refused, uploaded } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const NAME = 'Überblick "2024" 日本.txt';
const PURPOSES = ['assistants', 'batch', 'fine-tune', 'vision', 'user_data', 'evals'];

row('POST', '/files', 'UTF-8 names, expires_after, status processed', async ({ client }) => {
  const content = Buffer.from('Grüße\n'.repeat(100));
  const made = await client.files.create({
    file: await toFile(content, NAME),
    purpose: 'user_data',
    expires_after: { anchor: 'created_at', seconds: 3600 },
  });
  assert.deepEqual([made.filename, made.bytes, made.purpose], [NAME, content.length, 'user_data']);
  assert.deepEqual([made.object, made.status], ['file', 'processed']);
  assert.ok(Math.abs(made.expires_at - made.created_at - 3600) <= 1);
});

row('POST', '/files', "from disk, the fields in the client's own order", async ({ client }) => {
  const folder = await mkdtemp(join(tmpdir(), 'checklist-'));
  try {
    const path = join(folder, 'from disk.md');
    await writeFile(path, '# Owls\n'.repeat(50_000));
    const made = await client.files.create({ file: createReadStream(path), purpose: 'assistants' });
    assert.deepEqual([made.filename, made.bytes], ['from disk.md', 350_000]);
  } finally {
    await rm(folder, { recursive: true });
  }
});

row('POST', '/files', 'all six purposes', async ({ client }) => {
  for (const purpose of PURPOSES) {
    const made = await client.files.create({ file: await toFile(Buffer.from('text'), 'a.txt'), purpose });
    assert.match(made.id, /^file-/);
  }
});

row('POST', '/files', 'too large: 400 file_too_large', async ({ client }) => {
  const file = await toFile(Buffer.alloc(1_000_001, 'x'), 'big.txt');
  await refused(BadRequestError, client.files.create({ file, purpose: 'assistants' }), { code: 'file_too_large' });
});

row('POST', '/files', 'a type nobody knows: 400 unsupported_file_type', async ({ client }) => {
  const file = await toFile(Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)), 'tool.bin');
  await refused(BadRequestError, client.files.create({ file, purpose: 'assistants' }), {
    code: 'unsupported_file_type',
  });
});

row(
  'GET',
  '/files',
  'purpose filter, order, pages without gaps',
  async ({ client }) => {
    const made = [];
    for (let n = 0; n < 5; n++) {
      const file = await toFile(Buffer.from('text'), 'p.txt');
      made.push((await client.files.create({ file, purpose: 'fine-tune' })).id);
    }
    const first = await client.files.list({ purpose: 'fine-tune', order: 'desc', limit: 2 });
    assert.deepEqual([first.data.length, first.has_more], [2, true]);
    const newestFirst = (await all(first)).map((file) => file.id);
    assert.deepEqual(newestFirst.toSorted(), made.toSorted());
    const oldestFirst = await all(client.files.list({ purpose: 'fine-tune', order: 'asc', limit: 3 }));
    assert.deepEqual(
      oldestFirst.map((file) => file.id),
      newestFirst.toReversed(),
    );
    await refused(BadRequestError, client.files.list({ limit: 10_001 }), { param: 'limit' });
  },
  { alone: true },
);

row(
  'GET',
  '/files',
  'everything in one page when nothing is asked',
  async (given) => {
    const made = await Promise.all(Array.from({ length: 25 }, () => uploaded(given)));
    const page = await given.client.files.list();
    const listed = new Set(page.data.map((file) => file.id));
    assert.ok(made.every((id) => listed.has(id)));
    assert.equal(page.has_more, false);
  },
  { alone: true },
);

row('GET', '/files/{file_id}', 'reaches processed; unknown: 404', async (given) => {
  const made = await uploaded(given);
  const done = await given.client.files.waitForProcessing(made, { pollInterval: 100 });
  assert.equal(done.status, 'processed');
  assert.equal((await given.client.files.retrieve(made)).id, made);
  await refused(NotFoundError, given.client.files.retrieve('file-unknown'));
});

row('DELETE', '/files/{file_id}', 'gone from every store and from search; again: 404', async (given) => {
  const { client } = given;
  const stores = [(await client.vectorStores.create({})).id, (await client.vectorStores.create({})).id];
  const file = await ingested(given, stores[0], 'owl.txt', 'Owls hunt at night.');
  await client.vectorStores.files.createAndPoll(stores[1], { file_id: file });
  const hits = await client.vectorStores.search(stores[0], { query: 'owls' });
  assert.deepEqual(
    hits.data.map((hit) => hit.file_id),
    [file],
  );
  assert.deepEqual(await client.files.delete(file), { id: file, object: 'file', deleted: true });
  for (const store of stores) {
    assert.deepEqual((await client.vectorStores.search(store, { query: 'owls' })).data, []);
    assert.equal((await client.vectorStores.retrieve(store)).file_counts.total, 0);
    await refused(NotFoundError, client.vectorStores.files.retrieve(file, { vector_store_id: store }));
  }
  await refused(NotFoundError, client.files.delete(file));
});

row('GET', '/files/{file_id}/content', 'byte-exact, whole and streamed', async ({ client }) => {
  const content = Buffer.concat(
    Array.from({ length: 2_000 }, () => Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))),
  );
  const { id } = await client.files.create({ file: await toFile(content, 'bytes.bin'), purpose: 'batch' });
  const whole = Buffer.from(await (await client.files.content(id)).arrayBuffer());
  assert.ok(whole.equals(content));
  const pieces = await all((await client.files.content(id)).body);
  assert.ok(Buffer.concat(pieces).equals(content));
  await refused(NotFoundError, client.files.content('file-unknown'));
});
