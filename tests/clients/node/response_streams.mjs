// `/responses`, streamed.

import assert from 'node:assert/strict';

import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';

import { Weight } from './chat.mjs';
import { GROUNDED, WEIGH, fileSearch } from './responses.mjs';
import { MODEL, all, collected } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const PATH = '/responses';
const BEGIN = ['response.created', 'response.in_progress'];
const SEARCH = [
  'response.output_item.added',
  'response.file_search_call.in_progress',
  'response.file_search_call.searching',
  'response.file_search_call.completed',
  'response.output_item.done',
];
const MESSAGE = [
  'response.output_item.added',
  'response.content_part.added',
  'response.output_text.delta',
  'response.output_text.done',
  'response.content_part.done',
  'response.output_item.done',
];
const ANNOTATION = 'response.output_text.annotation.added';

const streamed = ({ client }, input, options = {}) =>
  all(client.responses.create({ model: MODEL, input, stream: true, ...options }));

/** The final response of the client's own stream helper. */
const followed = ({ client }, input, options = {}) =>
  client.responses.stream({ model: MODEL, input, ...options }).finalResponse();

/** The events' types, repeated ones once. */
const types = (events) => events.map((event) => event.type).filter((type, n, all) => type !== all[n - 1]);

row('POST', PATH, 'stream: the events of a message in order', async (given) => {
  const events = await streamed(given, 'one two three');
  assert.deepEqual(types(events), [...BEGIN, ...MESSAGE, 'response.completed']);
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, n) => n),
  );
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), 'one two three');
  assert.deepEqual([events[0].response.status, events[0].response.output], ['in_progress', []]);
  const { response } = events.at(-1);
  assert.deepEqual([response.status, response.usage.total_tokens], ['completed', 6]);
  assert.equal(response.output[0].content[0].text, 'one two three');
});

row('POST', PATH, 'stream: the events of a search, then of the message', async (given) => {
  const events = await streamed(given, GROUNDED, { tools: fileSearch(given) });
  const seen = types(events.filter((event) => event.type !== ANNOTATION));
  assert.deepEqual(seen, [...BEGIN, ...SEARCH, ...MESSAGE, 'response.completed']);
  const notes = events.filter((event) => event.type === ANNOTATION);
  assert.ok(notes.length, 'no citation is told');
  const final = events.at(-1).response.output[1].content[0].annotations;
  assert.deepEqual(
    final.map((note) => note.file_id),
    notes.map(() => given.mouse),
  );
});

row('POST', PATH, 'stream(): a search and its answer, folded by the client', async (given) => {
  const final = await followed(given, GROUNDED, {
    tools: fileSearch(given),
    include: ['file_search_call.results'],
  });
  assert.deepEqual([final.status, final.output_text], ['completed', GROUNDED]);
  assert.deepEqual(
    final.output.map((item) => item.type),
    ['file_search_call', 'message'],
  );
  assert.equal(final.output[0].results[0].filename, 'mouse.txt');
});

row('POST', PATH, 'stream(): a function call, folded by the client', async (given) => {
  const { output } = await followed(given, '{"animal": "mouse"}', { tools: [WEIGH] });
  assert.equal(output.length, 1);
  assert.equal(output[0].name, 'weigh');
  assert.deepEqual(JSON.parse(output[0].arguments), { animal: 'mouse' });
});

row('POST', PATH, 'stream(): an answer in the shape that was asked for', async (given) => {
  const text = { format: zodTextFormat(Weight, 'weight') };
  const final = await followed(given, '{"animal": "mouse", "grams": 6}', { text });
  assert.deepEqual(final.output_parsed, { animal: 'mouse', grams: 6 });
});

row('POST', PATH, 'stream: the limit reached ends with response.incomplete', async (given) => {
  const last = (await streamed(given, 'word '.repeat(30), { max_output_tokens: 16 })).at(-1);
  assert.equal(last.type, 'response.incomplete');
  assert.equal(last.response.incomplete_details.reason, 'max_output_tokens');
});

row('POST', PATH, 'stream: a failure half way is an error, not an end', async ({ client }) => {
  const read = [];
  await assert.rejects(
    async () => {
      const events = await client.responses.create({ model: 'breaking', input: 'one two three', stream: true });
      for await (const event of events) read.push(event.delta ?? '');
    },
    (error) => error.constructor === OpenAI.APIError && Boolean(error.message),
  );
  assert.equal(read.join(''), 'one');
});
