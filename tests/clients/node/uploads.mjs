// `/uploads`: a file in parts.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';

import { toFile } from 'openai';

import { BadRequestError, NotFoundError, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const begun = ({ client }, bytes, options = {}) =>
  client.uploads.create({ filename: 'parts.txt', bytes, mime_type: 'text/plain', purpose: 'assistants', ...options });

const sent = async ({ client }, upload, data) =>
  client.uploads.parts.create(upload.id ?? upload, { data: await toFile(Buffer.from(data), 'part') });

const content = async ({ client }, id) => (await client.files.content(id)).text();

row('POST', '/uploads', 'pending, open for an hour, all six purposes', async (given) => {
  for (const purpose of ['assistants', 'batch', 'fine-tune', 'vision', 'user_data', 'evals']) {
    const upload = await begun(given, 4, { purpose });
    assert.deepEqual([upload.object, upload.status, upload.bytes], ['upload', 'pending', 4]);
    assert.deepEqual([upload.filename, upload.purpose, upload.file ?? null], ['parts.txt', purpose, null]);
    assert.ok(Math.abs(upload.expires_at - upload.created_at - 3600) <= 1);
  }
});

row('POST', '/uploads', 'more than a file may have: 400 file_too_large', async (given) => {
  await refused(BadRequestError, begun(given, 1_000_001), { code: 'file_too_large' });
});

row('POST', '/uploads/{upload_id}/parts', 'in parallel', async (given) => {
  const upload = await begun(given, 400_000);
  const letters = ['a', 'b', 'c', 'd'];
  const made = await Promise.all(letters.map((letter) => sent(given, upload, letter.repeat(100_000))));
  for (const part of made) assert.deepEqual([part.object, part.upload_id], ['upload.part', upload.id]);
  assert.equal(new Set(made.map((part) => part.id)).size, 4);
  const done = await given.client.uploads.complete(upload.id, {
    part_ids: made.toReversed().map((part) => part.id),
  });
  const expected = letters.toReversed().map((letter) => letter.repeat(100_000));
  assert.ok((await content(given, done.file.id)) === expected.join(''));
  await refused(NotFoundError, sent(given, 'upload_unknown', 'a'));
});

row('POST', '/uploads/{upload_id}/complete', 'in the order of part_ids, with the file inside', async (given) => {
  const upload = await begun(given, 11, { expires_after: { anchor: 'created_at', seconds: 7200 } });
  const second = (await sent(given, upload, 'world')).id;
  const first = (await sent(given, upload, 'hello ')).id;
  const md5 = createHash('md5').update('hello world').digest('hex');
  const done = await given.client.uploads.complete(upload.id, { part_ids: [first, second], md5 });
  assert.deepEqual([done.id, done.status], [upload.id, 'completed']);
  const stored = await given.client.files.retrieve(done.file.id);
  assert.deepEqual([stored.filename, stored.bytes, stored.purpose], ['parts.txt', 11, 'assistants']);
  assert.ok(stored.expires_at, 'the file never expires');
  assert.equal(await content(given, stored.id), 'hello world');
});

row(
  'POST',
  '/uploads/{upload_id}/complete',
  'wrong size, part or md5: 400, and it can be put right',
  async (given) => {
    const upload = await begun(given, 5);
    const part = (await sent(given, upload, 'hello')).id;
    for (const body of [
      { part_ids: [] },
      { part_ids: [part, part] },
      { part_ids: ['part_unknown'] },
      { part_ids: [part], md5: '0'.repeat(32) },
    ])
      await refused(BadRequestError, given.client.uploads.complete(upload.id, body));
    const done = await given.client.uploads.complete(upload.id, { part_ids: [part] });
    assert.equal(done.status, 'completed');
  },
);

row('POST', '/uploads/{upload_id}/complete', 'a large file in many parts', async (given) => {
  const text = 'Owls hunt at night. '.repeat(20_000);
  const upload = await begun(given, text.length, { filename: 'owls.txt' });
  const part_ids = [];
  for (let start = 0; start < text.length; start += 150_000)
    part_ids.push((await sent(given, upload, text.slice(start, start + 150_000))).id);
  const done = await given.client.uploads.complete(upload.id, { part_ids });
  assert.deepEqual([done.status, done.file.bytes], ['completed', text.length]);
  assert.ok((await content(given, done.file.id)) === text);
});

row('POST', '/uploads/{upload_id}/cancel', 'without a body; no parts afterwards', async (given) => {
  const upload = await begun(given, 5);
  await sent(given, upload, 'he');
  assert.equal((await given.client.uploads.cancel(upload.id)).status, 'cancelled');
  await refused(BadRequestError, sent(given, upload, 'llo'));
  await refused(NotFoundError, given.client.uploads.cancel('upload_unknown'));
});
