// Stored completions: none are kept, and the calls say so.

import assert from 'node:assert/strict';

import { NotFoundError, all, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const ONE = '/chat/completions/{completion_id}';
const UNKNOWN = 'chatcmpl-unknown';

row('GET', '/chat/completions', 'an empty list', async ({ client }) => {
  assert.deepEqual(await all(client.chat.completions.list({ limit: 5 })), []);
});

row('GET', ONE, '404', ({ client }) => refused(NotFoundError, client.chat.completions.retrieve(UNKNOWN)));

row('GET', `${ONE}/messages`, '404', ({ client }) =>
  refused(NotFoundError, client.chat.completions.messages.list(UNKNOWN)),
);

row('POST', ONE, '404', ({ client }) =>
  refused(NotFoundError, client.chat.completions.update(UNKNOWN, { metadata: { a: 'b' } })),
);

row('DELETE', ONE, '404', ({ client }) => refused(NotFoundError, client.chat.completions.delete(UNKNOWN)));
