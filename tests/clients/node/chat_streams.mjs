// `/chat/completions`, streamed.

import assert from 'node:assert/strict';

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';

import { WEIGH, Weight, fileSearch, user } from './chat.mjs';
import { MODEL, NotFoundError, RateLimitError, all, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const PATH = '/chat/completions';

const opened = ({ client }, text, options = {}) =>
  client.chat.completions.create({ model: MODEL, messages: user(text), stream: true, ...options });
const streamed = (given, text, options) => all(opened(given, text, options));

/** The final answer of the client's own stream helper. */
const followed = ({ client }, text, options = {}) =>
  client.chat.completions.stream({ model: MODEL, messages: user(text), ...options }).finalChatCompletion();

row('POST', PATH, 'stream: pieces in order, one role, one reason, no usage unasked', async (given) => {
  const chunks = await streamed(given, 'one two three');
  for (const chunk of chunks) {
    assert.deepEqual([chunk.object, chunk.model], ['chat.completion.chunk', MODEL]);
    assert.deepEqual([chunk.id, chunk.created, chunk.usage], [chunks[0].id, chunks[0].created, undefined]);
  }
  const choices = chunks.map((chunk) => chunk.choices[0]);
  assert.equal(choices.map(({ delta }) => delta.content ?? '').join(''), 'one two three');
  assert.deepEqual(
    choices.map(({ delta }) => delta.role).filter(Boolean),
    ['assistant'],
  );
  assert.deepEqual(
    choices.map((choice) => choice.finish_reason).filter(Boolean),
    ['stop'],
  );
});

row('POST', PATH, 'stream: usage in the last chunk when asked for', async (given) => {
  const chunks = await streamed(given, 'one two three', { stream_options: { include_usage: true } });
  const last = chunks.pop();
  assert.deepEqual([last.choices, last.usage.total_tokens], [[], 6]);
  for (const chunk of chunks) assert.equal(chunk.usage, null);
});

row('POST', PATH, 'stream(): several choices, folded by the client', async (given) => {
  const answer = await followed(given, 'one two', { n: 2 });
  assert.deepEqual(
    answer.choices.map(({ message }) => [message.role, message.content]),
    [
      ['assistant', 'one two'],
      ['assistant', 'one two'],
    ],
  );
});

row('POST', PATH, 'stream(): function calls, folded by the client', async (given) => {
  const [{ message, finish_reason }] = (await followed(given, '{"animal": "mouse"}', { tools: [WEIGH] })).choices;
  assert.equal(finish_reason, 'tool_calls');
  assert.equal(message.tool_calls.length, 1);
  const [call] = message.tool_calls;
  assert.equal(call.function.name, 'weigh');
  assert.deepEqual(JSON.parse(call.function.arguments), { animal: 'mouse' });
});

row('POST', PATH, 'stream(): an answer in the shape that was asked for', async (given) => {
  const response_format = zodResponseFormat(Weight, 'weight');
  const answer = await followed(given, '{"animal": "mouse", "grams": 6}', { response_format });
  assert.deepEqual(answer.choices[0].message.parsed, { animal: 'mouse', grams: 6 });
});

row('POST', PATH, 'stream(): file_search, all citations in the final message', async (given) => {
  const text = 'It weighs six grams [1]. Its nest is of woven grass [1].';
  const [{ message }] = (await followed(given, text, { tools: [fileSearch(given)] })).choices;
  assert.equal(message.content, text);
  assert.deepEqual(
    message.annotations.map((note) => [note.type, note.url_citation.title]),
    [
      ['url_citation', 'mouse.txt'],
      ['url_citation', 'mouse.txt'],
    ],
  );
});

row('POST', PATH, 'stream: logprobs and a refusal', async (given) => {
  const chunks = await streamed(given, 'one two', { logprobs: true });
  const tokens = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []);
  assert.deepEqual(
    tokens.map(({ token }) => token),
    ['one', ' two'],
  );
  const refusal = await streamed(given, 'hello', { model: 'refusing' });
  assert.equal(refusal.map((chunk) => chunk.choices[0].delta.refusal ?? '').join(''), 'I would rather not.');
});

row('POST', PATH, 'stream: a failure before the first piece has its status', async (given) => {
  await refused(RateLimitError, opened(given, 'hello', { model: 'busy' }));
  await refused(NotFoundError, opened(given, 'hello', { model: 'emu' }));
});

row('POST', PATH, 'stream: a failure half way is an error, not an end', async (given) => {
  const read = [];
  await assert.rejects(
    async () => {
      for await (const chunk of await opened(given, 'one two three', { model: 'breaking' }))
        read.push(chunk.choices[0].delta.content ?? '');
    },
    (error) => error.constructor === OpenAI.APIError && Boolean(error.message),
  );
  assert.equal(read.join(''), 'one');
});

row('POST', PATH, 'stream: left early, the next request is answered', async (given) => {
  for await (const _ of await opened(given, 'word '.repeat(2_000))) break;
  assert.ok((await streamed(given, 'one')).length > 1);
});
