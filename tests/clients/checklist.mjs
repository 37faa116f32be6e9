// The checklist of OpenAI's API, run with the official Node.js client.
//
//     node tests/clients/checklist.mjs http://127.0.0.1:8802/v1
//
// Prints one JSON object a line: first `{"client": ...}`, then `{"row", "ok", "detail"}` for every row. The rows are
// those of `checklist.py`.

import OpenAI from 'openai';
import { VERSION } from 'openai/version';

import chat from './node/chat.mjs';
import chatStreams from './node/chat_streams.mjs';
import embeddings from './node/embeddings.mjs';
import fileBatches from './node/file_batches.mjs';
import files from './node/files.mjs';
import models from './node/models.mjs';
import responseStreams from './node/response_streams.mjs';
import responses from './node/responses.mjs';
import { ROW_HEADER, made } from './node/rows.mjs';
import search from './node/search.mjs';
import storedChats from './node/stored_chats.mjs';
import uploads from './node/uploads.mjs';
import vectorStoreFiles from './node/vector_store_files.mjs';
import vectorStores from './node/vector_stores.mjs';

const ROWS = [
  ...files,
  ...uploads,
  ...vectorStores,
  ...search,
  ...vectorStoreFiles,
  ...fileBatches,
  ...embeddings,
  ...models,
  ...chat,
  ...chatStreams,
  ...storedChats,
  ...responses,
  ...responseStreams,
];
// Most rows wait for an ingest now and then.
const AT_ONCE = 4;

/** Run a row and tell what came of it. */
async function run(row, given) {
  const client = given.client.withOptions({ defaultHeaders: { [ROW_HEADER]: row.key } });
  let detail = null;
  try {
    await row.check({ ...given, client });
  } catch (error) {
    const line = error.stack?.split('\n').find((frame) => frame.includes('/clients/node/') && !frame.includes('rows.mjs'));
    detail = `${error.name}: ${error.message} ${line?.trim() ?? ''}`;
  }
  console.log(JSON.stringify({ row: row.key, ok: detail === null, detail }));
}

console.log(JSON.stringify({ client: `Node.js ${VERSION}` }));
const given = await made(
  new OpenAI({ baseURL: process.argv[2], apiKey: 'unused', maxRetries: 0, timeout: 30_000 }),
);
for (const row of ROWS.filter((row) => row.alone)) await run(row, given);
const waiting = ROWS.filter((row) => !row.alone);
await Promise.all(
  Array.from({ length: AT_ONCE }, async () => {
    for (let row = waiting.shift(); row; row = waiting.shift()) await run(row, given);
  }),
);
