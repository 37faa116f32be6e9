// `/embeddings`.

import assert from 'node:assert/strict';

import { BadRequestError, NotFoundError, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

async function vectors({ client }, input, options = {}) {
  const made = await client.embeddings.create({ model: 'hash', input, ...options });
  assert.deepEqual(
    made.data.map((item) => item.index),
    made.data.map((_, position) => position),
  );
  assert.deepEqual([made.object, made.model], ['list', 'hash']);
  return made.data.map((item) => item.embedding);
}

function close(one, other) {
  assert.ok(one.length > 0 && one.length === other.length, `${one.length} figures are not ${other.length}`);
  assert.ok(
    one.every((figure, n) => Math.abs(figure - other[n]) < 1e-6),
    'the vectors differ',
  );
}

row('POST', '/embeddings', 'strings and token ids, one or many, in order', async (given) => {
  const [one] = await vectors(given, 'hello world');
  const many = await vectors(given, ['good night', 'hello world']);
  assert.equal(many.length, 2);
  close(many[1], one);
  assert.notDeepEqual(many[0], many[1]);
  close((await vectors(given, [15339, 1917]))[0], one);
  close((await vectors(given, [[15339, 1917], [15339]]))[0], one);
  const { usage } = await given.client.embeddings.create({ model: 'hash', input: 'hello world' });
  assert.deepEqual(usage, { prompt_tokens: 2, total_tokens: 2 });
});

row('POST', '/embeddings', 'floats and base64 are the same figures', async (given) => {
  const [packed] = await vectors(given, 'hello world', { encoding_format: 'base64' });
  assert.equal(typeof packed, 'string');
  const [floats] = await vectors(given, 'hello world', { encoding_format: 'float' });
  const [asTheClientAsks] = await vectors(given, 'hello world');
  const bytes = Buffer.from(packed, 'base64');
  close(
    floats.map((_, n) => bytes.readFloatLE(4 * n)),
    floats,
  );
  close(asTheClientAsks, floats);
});

row('POST', '/embeddings', 'dimensions: cut, and of unit length again', async (given) => {
  const [short] = await vectors(given, 'the quick brown fox jumps over the lazy dog', { dimensions: 200 });
  assert.equal(short.length, 200);
  const length = short.reduce((sum, figure) => sum + figure * figure, 0);
  assert.ok(Math.abs(length - 1) < 1e-5, 'it is not of unit length');
});

row('POST', '/embeddings', 'nothing to embed: 400; an unknown model: 404', async (given) => {
  await refused(BadRequestError, vectors(given, ''), { param: 'input' });
  await refused(BadRequestError, vectors(given, ['a', '']), { param: 'input[1]' });
  await refused(BadRequestError, vectors(given, 'a', { dimensions: 385 }), { param: 'dimensions' });
  await refused(NotFoundError, vectors(given, 'a', { model: 'unknown' }), { code: 'model_not_found' });
});
