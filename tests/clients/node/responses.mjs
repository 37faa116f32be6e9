// `/responses`, answered in one piece.

import assert from 'node:assert/strict';

import { zodTextFormat } from 'openai/helpers/zod';

import { Weight } from './chat.mjs';
import { BadRequestError, MODEL, NotFoundError, RateLimitError, all, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const PATH = '/responses';
const ONE = '/responses/{response_id}';
const RESULTS = 'file_search_call.results';

export const WEIGH = {
  type: 'function',
  name: 'weigh',
  parameters: {
    type: 'object',
    properties: { animal: { type: 'string' } },
    required: ['animal'],
    additionalProperties: false,
  },
  strict: true,
};
export const GROUNDED = 'The harvest mouse weighs six grams [1].';

export const fileSearch = ({ animals }, options = {}) => [
  { type: 'file_search', vector_store_ids: [animals], ...options },
];
const asked = ({ client }, input, options = {}) => client.responses.create({ model: MODEL, input, ...options });

row('POST', PATH, 'a response with everything a client reads', async (given) => {
  const answer = await asked(given, 'Six grams.', { temperature: 0.5, metadata: { a: 'b' } });
  assert.deepEqual([answer.object, answer.status, answer.model], ['response', 'completed', MODEL]);
  assert.match(answer.id, /^resp_/);
  assert.deepEqual([answer.output_text, answer.error, answer.incomplete_details], ['Six grams.', null, null]);
  assert.equal(answer.output.length, 1);
  const [message] = answer.output;
  assert.deepEqual([message.type, message.role, message.status], ['message', 'assistant', 'completed']);
  assert.deepEqual([message.content[0].type, message.content[0].annotations], ['output_text', []]);
  assert.deepEqual([answer.temperature, answer.metadata, answer.tools], [0.5, { a: 'b' }, []]);
  const { input_tokens, output_tokens, total_tokens } = answer.usage;
  assert.deepEqual([input_tokens, output_tokens, total_tokens], [2, 2, 4]);
  assert.equal(answer.usage.input_tokens_details.cached_tokens, 0);
  assert.equal(answer.usage.output_tokens_details.reasoning_tokens, 0);
});

row('POST', PATH, 'items as input, earlier answers among them', async (given) => {
  const { output: answered } = await asked(given, 'Six grams.');
  const said = [
    { role: 'developer', content: 'Be brief.' },
    { role: 'user', content: [{ type: 'input_text', text: 'How heavy?' }] },
    ...answered,
    { role: 'user', content: 'Thank you.' },
  ];
  assert.equal((await asked(given, said, { instructions: 'Be kind.' })).output_text, 'Thank you.');
});

row('POST', PATH, 'file_search: four-member citations, results only on request', async (given) => {
  const answer = await asked(given, GROUNDED, { tools: fileSearch(given) });
  const [call, message] = answer.output;
  assert.deepEqual([call.type, call.status, call.results ?? null], ['file_search_call', 'completed', null]);
  assert.ok(call.queries.length, 'no query is told');
  assert.equal(message.content[0].annotations.length, 1);
  const [note] = message.content[0].annotations;
  assert.deepEqual([note.type, note.file_id, note.filename], ['file_citation', given.mouse, 'mouse.txt']);
  assert.ok(note.index >= 0 && note.index <= GROUNDED.length, `index ${note.index} lies outside the text`);
  assert.deepEqual(answer.tools[0].vector_store_ids, [given.animals]);
  const withResults = await asked(given, GROUNDED, { tools: fileSearch(given), include: [RESULTS] });
  const [result] = withResults.output[0].results;
  assert.deepEqual([result.file_id, result.filename], [given.mouse, 'mouse.txt']);
  assert.ok(result.text.includes('six grams') && result.score >= 0 && result.score <= 1);
  assert.deepEqual(result.attributes, { legs: 4, small: true });
});

row('POST', PATH, 'file_search with filters and ranking options', async (given) => {
  const tools = fileSearch(given, {
    max_num_results: 1,
    filters: { type: 'eq', key: 'small', value: false },
    ranking_options: {
      ranker: 'auto',
      score_threshold: 0,
      hybrid_search: { embedding_weight: 1, text_weight: 1 },
    },
  });
  const answer = await asked(given, 'How heavy is a mouse?', { tools, include: [RESULTS] });
  assert.deepEqual(
    answer.output[0].results.map((result) => result.filename),
    ['whale.md'],
  );
  assert.equal(answer.tools[0].max_num_results, 1);
});

row('POST', PATH, 'function calls, there and back', async (given) => {
  const answer = await asked(given, '{"animal": "mouse"}', { tools: [WEIGH] });
  assert.equal(answer.output.length, 1);
  const [call] = answer.output;
  assert.deepEqual([call.type, call.name, call.status], ['function_call', 'weigh', 'completed']);
  assert.deepEqual(JSON.parse(call.arguments), { animal: 'mouse' });
  const told = [{ type: 'function_call_output', call_id: call.call_id, output: '6 grams' }];
  const after = await asked(given, told, { previous_response_id: answer.id, tools: [WEIGH] });
  assert.deepEqual([after.output_text, after.previous_response_id], ['6 grams', answer.id]);
});

row('POST', PATH, 'previous_response_id: what was said counts, old instructions do not', async (given) => {
  const first = await asked(given, 'hello', { instructions: 'Speak softly and slowly.' });
  assert.equal(first.usage.input_tokens, 5);
  const second = await asked(given, 'again', { previous_response_id: first.id });
  assert.deepEqual([second.output_text, second.usage.input_tokens], ['again', 3]);
  await refused(NotFoundError, asked(given, 'x', { previous_response_id: 'resp_unknown' }));
});

row('POST', PATH, 'store false: it can be neither read nor continued', async (given) => {
  const { id } = await asked(given, 'hello', { store: false });
  await refused(NotFoundError, given.client.responses.retrieve(id));
  await refused(NotFoundError, asked(given, 'again', { previous_response_id: id }));
});

row('POST', PATH, 'max_output_tokens reached: incomplete', async (given) => {
  const answer = await asked(given, 'word '.repeat(30), { max_output_tokens: 16 });
  assert.deepEqual([answer.status, answer.incomplete_details.reason], ['incomplete', 'max_output_tokens']);
  assert.equal(answer.usage.output_tokens, 16);
});

row('POST', PATH, 'parse(): an answer in the shape that was asked for', async ({ client }) => {
  const answer = await client.responses.parse({
    model: MODEL,
    input: '{"animal": "mouse", "grams": 6}',
    text: { format: zodTextFormat(Weight, 'weight') },
  });
  assert.deepEqual(answer.output_parsed, { animal: 'mouse', grams: 6 });
});

row('POST', PATH, 'errors by class: 400, 404 and 429', async (given) => {
  await refused(NotFoundError, asked(given, 'hello', { model: 'emu' }), { code: 'model_not_found' });
  await refused(RateLimitError, asked(given, 'hello', { model: 'busy' }));
  await refused(BadRequestError, asked(given, 'hello', { background: true }), { param: 'background' });
  await refused(BadRequestError, asked(given, 'hello', { tools: [{ type: 'web_search' }] }));
  await refused(BadRequestError, asked(given, 'hello', { max_output_tokens: 15 }), {
    param: 'max_output_tokens',
  });
});

row('GET', ONE, 'as it was answered; results on request; unknown: 404', async (given) => {
  const { responses } = given.client;
  const made = await asked(given, GROUNDED, { tools: fileSearch(given) });
  const again = await responses.retrieve(made.id);
  assert.deepEqual([again.id, again.output_text, again.usage], [made.id, made.output_text, made.usage]);
  assert.equal(again.output[0].results ?? null, null);
  const shown = await responses.retrieve(made.id, { include: [RESULTS] });
  assert.equal(shown.output[0].results[0].filename, 'mouse.txt');
  await refused(NotFoundError, responses.retrieve('resp_unknown'));
});

row('DELETE', ONE, 'whatever is accepted; then it is gone', async (given) => {
  const { id } = await asked(given, 'hello');
  const bare = await given.client.responses.delete(id).asResponse();
  assert.deepEqual(await bare.json(), { id, object: 'response', deleted: true });
  await refused(NotFoundError, given.client.responses.retrieve(id));
  await refused(NotFoundError, given.client.responses.delete(id));
});

row('GET', `${ONE}/input_items`, 'with ids, the newest first, in pages', async (given) => {
  const { inputItems } = given.client.responses;
  const said = ['one', 'two', 'three'].map((content) => ({ role: 'user', content }));
  const { id } = await asked(given, said);
  const items = await all(inputItems.list(id, { limit: 2 }));
  assert.deepEqual(
    items.map((item) => item.content[0].text),
    ['three', 'two', 'one'],
  );
  const ids = items.map((item) => item.id);
  assert.equal(new Set(ids).size, 3);
  const oldestFirst = await all(inputItems.list(id, { order: 'asc' }));
  assert.deepEqual(
    oldestFirst.map((item) => item.id),
    ids.toReversed(),
  );
  const [string] = (await inputItems.list((await asked(given, 'hello')).id)).data;
  assert.deepEqual([string.type, string.role, string.content[0].type], ['message', 'user', 'input_text']);
  await refused(NotFoundError, inputItems.list('resp_unknown'));
});

row('POST', `${ONE}/cancel`, 'not in the background: 400; unknown: 404', async (given) => {
  const { id } = await asked(given, 'hello');
  await refused(BadRequestError, given.client.responses.cancel(id));
  await refused(NotFoundError, given.client.responses.cancel('resp_unknown'));
});

row('POST', '/responses/input_tokens', 'counts what would be asked', async ({ client }) => {
  const told = await client.responses.inputTokens.count({ model: MODEL, input: 'one two three' });
  assert.equal(told.object, 'response.input_tokens');
  assert.ok(told.input_tokens > 0, 'it counts nothing');
});

row('POST', '/responses/compact', 'not offered: 404', ({ client }) =>
  refused(NotFoundError, client.responses.compact({ model: MODEL, input: 'hello' })),
);
