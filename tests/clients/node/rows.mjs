// What a row of the checklist is, and what every row is given.

import assert from 'node:assert/strict';

import OpenAI, { toFile } from 'openai';

// Names the row in every request it makes, so that a recording can be told apart.
export const ROW_HEADER = 'x-checklist-row';

// Repeats the last message, or calls the first function with it.
export const MODEL = 'parrot';

export const MOUSE =
  'The harvest mouse weighs six grams. It builds its nest from woven grass, high above the ground.';
const WHALE = 'The blue whale weighs up to one hundred and fifty tonnes. Its heart alone is as heavy as a small car.';

/** The client, and a store `animals` in which `mouse.txt` (whose id is `mouse`) and `whale.md` are searchable. */
export async function made(client) {
  const { id: animals } = await client.vectorStores.create({ name: 'animals' });
  const given = { client, animals };
  const mouse = await ingested(given, animals, 'mouse.txt', MOUSE, { legs: 4, small: true });
  await ingested(given, animals, 'whale.md', WHALE, { legs: 0, small: false });
  return { ...given, mouse };
}

/** The id of a new file. */
export async function uploaded({ client }, name = 'note.txt', text = 'Owls hunt at night.') {
  const file = await toFile(Buffer.from(text), name);
  return (await client.files.create({ file, purpose: 'assistants' })).id;
}

/** The id of a new file that is searchable in the store. */
export async function ingested(given, store, name, text, attributes = {}) {
  const file_id = await uploaded(given, name, text);
  const done = await given.client.vectorStores.files.createAndPoll(store, { file_id, attributes });
  assert.deepEqual([done.status, done.last_error], ['completed', null]);
  return file_id;
}

/** Collects rows: `row(method, path, what, check)`; one that lists everything is `{ alone: true }`. */
export function collected() {
  const rows = [];
  const row = (method, path, what, check, { alone = false } = {}) =>
    rows.push({ key: `${method} ${path}: ${what}`, check, alone });
  return { rows, row };
}

/** The error that the promise was rejected with, which is of `kind`; where `param` or `code` are given it has them. */
export async function refused(kind, promise, { param, code } = {}) {
  let error;
  try {
    await promise;
  } catch (raised) {
    error = raised;
  }
  assert.ok(error, 'it was not refused');
  assert.ok(error instanceof OpenAI.APIError, `${error}`);
  assert.equal(error.constructor.name, kind.name);
  assert.ok(error.error?.message, 'the error has no message');
  assert.ok(error.requestID, 'the error has no request id');
  if (param !== undefined) assert.equal(error.param, param);
  if (code !== undefined) assert.equal(error.code, code);
  return error;
}

/** Everything of an iterator: of a list page by page, of a stream event by event. */
export async function all(iterable) {
  const found = [];
  for await (const item of await iterable) found.push(item);
  return found;
}

export const { BadRequestError, NotFoundError, PermissionDeniedError, RateLimitError } = OpenAI;
