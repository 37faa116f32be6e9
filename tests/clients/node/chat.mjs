// `/chat/completions`, answered in one piece.

import assert from 'node:assert/strict';

import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { BadRequestError, MODEL, NotFoundError, RateLimitError, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const PATH = '/chat/completions';

export const WEIGH = {
  type: 'function',
  function: {
    name: 'weigh',
    parameters: {
      type: 'object',
      properties: { animal: { type: 'string' } },
      required: ['animal'],
      additionalProperties: false,
    },
    strict: true,
  },
};
export const Weight = z.object({ animal: z.string(), grams: z.number().int() });

export const user = (content) => [{ role: 'user', content }];
export const fileSearch = ({ animals }, options = {}) => ({
  type: 'file_search',
  vector_store_ids: [animals],
  ...options,
});
const asked = ({ client }, text, options = {}) =>
  client.chat.completions.create({ model: MODEL, messages: user(text), ...options });
const choiceOf = async (answer) => (await answer).choices[0];

row('POST', PATH, 'an answer with everything a client reads', async (given) => {
  const answer = await asked(given, 'Six grams.', { temperature: 0, user: 'me', seed: 7 });
  assert.deepEqual([answer.object, answer.model], ['chat.completion', MODEL]);
  assert.match(answer.id, /^chatcmpl-/);
  assert.equal(answer.choices.length, 1);
  const [{ index, finish_reason, logprobs, message }] = answer.choices;
  assert.deepEqual([index, finish_reason, logprobs], [0, 'stop', null]);
  assert.deepEqual([message.role, message.content, message.refusal], ['assistant', 'Six grams.', null]);
  assert.equal(message.tool_calls, undefined);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [2, 2, 4]);
});

row('POST', PATH, 'every role, content as text and in parts', async (given) => {
  const call = { id: 'call_1', type: 'function', function: { name: 'weigh', arguments: '{}' } };
  const text = (text) => ({ type: 'text', text });
  const messages = [
    { role: 'developer', content: 'Be brief.' },
    { role: 'system', content: [text('Be kind.')] },
    { role: 'user', content: 'How heavy is it?', name: 'ann' },
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'call_1', content: [text('6 g')] },
    { role: 'assistant', content: [text('Six grams.')] },
    { role: 'user', content: [text('Thank '), text('you.')] },
  ];
  assert.equal((await choiceOf(asked(given, '', { messages }))).message.content, 'Thank you.');
});

row('POST', PATH, 'n, stop and a length limit', async (given) => {
  const answer = await asked(given, 'one two three', { n: 3, stop: [' three'] });
  assert.deepEqual(
    answer.choices.map((choice) => [choice.index, choice.message.content]),
    [
      [0, 'one two'],
      [1, 'one two'],
      [2, 'one two'],
    ],
  );
  for (const limit of [{ max_completion_tokens: 2 }, { max_tokens: 2 }]) {
    const cut = await choiceOf(asked(given, 'one two three', limit));
    assert.deepEqual([cut.message.content, cut.finish_reason], ['one two', 'length']);
  }
});

row('POST', PATH, 'logprobs when asked for', async (given) => {
  const { logprobs } = await choiceOf(asked(given, 'one two', { logprobs: true, top_logprobs: 1 }));
  assert.deepEqual(
    logprobs.content.map(({ token, logprob, top_logprobs }) => [token, logprob, top_logprobs.length]),
    [
      ['one', -0.5, 1],
      [' two', -0.5, 1],
    ],
  );
  assert.equal(logprobs.refusal, null);
});

row('POST', PATH, 'a refusal is no content', async (given) => {
  const { message, finish_reason } = await choiceOf(asked(given, 'hello', { model: 'refusing' }));
  assert.deepEqual([message.content, message.refusal], [null, 'I would rather not.']);
  assert.equal(finish_reason, 'content_filter');
});

row('POST', PATH, 'function calls, there and back', async (given) => {
  const question = '{"animal": "mouse"}';
  const choice = await choiceOf(asked(given, question, { tools: [WEIGH], tool_choice: 'required' }));
  assert.deepEqual([choice.finish_reason, choice.message.content], ['tool_calls', null]);
  assert.equal(choice.message.tool_calls.length, 1);
  const [call] = choice.message.tool_calls;
  assert.deepEqual([call.type, call.function.name], ['function', 'weigh']);
  assert.deepEqual(JSON.parse(call.function.arguments), { animal: 'mouse' });
  const messages = [
    ...user(question),
    choice.message,
    { role: 'tool', tool_call_id: call.id, content: '6 grams' },
  ];
  const after = await choiceOf(asked(given, '', { messages, tools: [WEIGH] }));
  assert.equal(after.message.content, '6 grams');
});

row('POST', PATH, 'file_search: citations that quote the file', async (given) => {
  const answer = await asked(given, 'The harvest mouse weighs six grams [1].', { tools: [fileSearch(given)] });
  const [{ message, finish_reason }] = answer.choices;
  assert.deepEqual([message.tool_calls, finish_reason], [undefined, 'stop']);
  assert.ok(message.annotations?.length, 'nothing is cited');
  const [{ type, url_citation: cited }] = message.annotations;
  assert.equal(type, 'url_citation');
  assert.equal(message.content.slice(cited.start_index, cited.end_index), '[1]');
  assert.equal(cited.title, 'mouse.txt');
  assert.ok(cited.url.includes(`/files/${given.mouse}/content`), cited.url);
  assert.equal(cited.quote, 'The harvest mouse weighs six grams.');
  assert.ok(answer.sherlock.stages.length, 'the stages of the search are not told');
  assert.ok(answer.usage.prompt_tokens > 20, 'the passages are not counted');
});

row('POST', PATH, 'file_search beside functions; the function is called', async (given) => {
  const tools = [fileSearch(given, { max_num_results: 1 }), WEIGH];
  const { message } = await choiceOf(asked(given, '{"animal": "mouse"}', { tools }));
  assert.deepEqual(
    message.tool_calls.map((call) => call.function.name),
    ['weigh'],
  );
  const silent = await choiceOf(asked(given, 'harvest mouse', { tools, tool_choice: 'none' }));
  assert.deepEqual([silent.message.content, silent.message.tool_calls], ['harvest mouse', undefined]);
});

row('POST', PATH, 'parse(): an answer in the shape that was asked for', async ({ client }) => {
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages: user('{"animal": "mouse", "grams": 6}'),
    response_format: zodResponseFormat(Weight, 'weight'),
  });
  assert.deepEqual(answer.choices[0].message.parsed, { animal: 'mouse', grams: 6 });
});

row('POST', PATH, 'errors by class: 400, 404 and 429', async (given) => {
  await refused(BadRequestError, asked(given, '', { messages: [] }), { code: 'bad_request' });
  await refused(BadRequestError, asked(given, 'hello', { n: 129 }), { param: 'n' });
  await refused(NotFoundError, asked(given, 'hello', { model: 'emu' }), { code: 'model_not_found' });
  const busy = await refused(RateLimitError, asked(given, 'hello', { model: 'busy' }));
  assert.equal(busy.headers.get('retry-after'), '7');
});

row('POST', PATH, 'the bare response beside what is read from it', async (given) => {
  const { data, response } = await asked(given, 'hello').withResponse();
  assert.equal(data.choices[0].message.content, 'hello');
  assert.ok(response.headers.get('x-request-id'), 'there is no request id');
  const bare = await asked(given, 'hello').asResponse();
  assert.equal((await bare.json()).choices[0].message.content, 'hello');
});
