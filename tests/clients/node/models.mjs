// `/models`.

import assert from 'node:assert/strict';

import { NotFoundError, PermissionDeniedError, all, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

row('GET', '/models', 'chat models first, no cursor', async ({ client }) => {
  const { data: page, request_id } = await client.models.list().withResponse();
  assert.ok(request_id, 'there is no request id');
  const ids = (await all(page)).map((model) => model.id);
  assert.deepEqual([ids.slice(0, 2), ids.at(-1)], [['parrot', 'zoo/owl'], 'hash']);
  assert.equal(page.data[0].object, 'model');
});

row('GET', '/models/{model}', 'names with a slash; unknown: 404 model_not_found', async ({ client }) => {
  for (const name of ['parrot', 'zoo/owl', 'hash'])
    assert.equal((await client.models.retrieve(name)).id, name);
  await refused(NotFoundError, client.models.retrieve('zoo/emu'), { code: 'model_not_found' });
});

row('DELETE', '/models/{model}', 'refused: 403, unknown: 404', async ({ client }) => {
  await refused(PermissionDeniedError, client.models.delete('zoo/owl'));
  await refused(NotFoundError, client.models.delete('zoo/emu'), { code: 'model_not_found' });
});
