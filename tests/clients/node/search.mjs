// `/vector_stores/{vector_store_id}/search`.

import assert from 'node:assert/strict';

import { BadRequestError, MOUSE, NotFoundError, collected, refused } from './rows.mjs';

const { rows, row } = collected();
export default rows;

const PATH = '/vector_stores/{vector_store_id}/search';

const searched = ({ client, animals }, query, options = {}) =>
  client.vectorStores.search(animals, { query, ...options });

const names = async (page) => (await page).data.map((hit) => hit.filename);

row('POST', PATH, 'one query: the best first, scores in 0..1', async (given) => {
  const page = await searched(given, 'the nest of the harvest mouse');
  assert.equal(page.object, 'vector_store.search_results.page');
  assert.deepEqual(page.body.search_query, ['the nest of the harvest mouse']);
  const [best] = page.data;
  assert.deepEqual([best.filename, best.file_id], ['mouse.txt', given.mouse]);
  assert.deepEqual(best.attributes, { legs: 4, small: true });
  assert.deepEqual(best.content[0], { type: 'text', text: MOUSE });
  const scores = page.data.map((hit) => hit.score);
  assert.deepEqual(
    scores,
    scores.toSorted((a, b) => b - a),
  );
  assert.ok(
    scores.every((score) => score >= 0 && score <= 1),
    `${scores} do not lie in 0..1`,
  );
});

row('POST', PATH, 'a list of queries, and no more results than asked for', async (given) => {
  const page = await searched(given, ['nest of grass', 'heart'], { max_num_results: 1 });
  assert.deepEqual([page.data.length, page.body.has_more], [1, false]);
  assert.deepEqual(page.body.search_query, ['nest of grass', 'heart']);
});

row('POST', PATH, 'filters, compared and combined', async (given) => {
  const mouse = { type: 'eq', key: 'small', value: true };
  const whale = { type: 'lt', key: 'legs', value: 2 };
  for (const [filters, expected] of [
    [mouse, ['mouse.txt']],
    [whale, ['whale.md']],
    [{ type: 'in', key: 'legs', value: [4, 'four'] }, ['mouse.txt']],
    [{ type: 'and', filters: [mouse, whale] }, []],
    [{ type: 'or', filters: [mouse, { type: 'and', filters: [whale] }] }, ['mouse.txt', 'whale.md']],
    [{ type: 'eq', key: 'small', value: 1 }, []],
    [{ type: 'ne', key: 'unheard_of', value: 'x' }, ['mouse.txt', 'whale.md']],
    [{ type: 'gt', key: 'unheard_of', value: 1 }, []],
  ])
    assert.deepEqual((await names(searched(given, 'how much does it weigh', { filters }))).toSorted(), expected);
});

row('POST', PATH, 'ranking options and rewrite_query', async (given) => {
  const ranking_options = { ranker: 'none', score_threshold: 0 };
  assert.equal((await names(searched(given, 'harvest mouse', { ranking_options })))[0], 'mouse.txt');
  const strict = { ranker: 'auto', score_threshold: 1 };
  assert.ok((await names(searched(given, 'grams', { ranking_options: strict }))).length <= 1);
  const rewritten = await names(searched(given, 'How heavy is a harvest mouse?', { rewrite_query: true }));
  assert.ok(rewritten.includes('mouse.txt'));
});

row('POST', PATH, 'what it cannot do: 400 with its place; an unknown store: 404', async (given) => {
  for (const [options, param] of [
    [{ max_num_results: 51 }, 'max_num_results'],
    [{ filters: { type: 'like', key: 'a', value: 'b' } }, 'filters.type'],
    [{ filters: { type: 'and', filters: [] } }, 'filters.filters'],
    [{ ranking_options: { score_threshold: 1.5 } }, 'ranking_options.score_threshold'],
  ])
    await refused(BadRequestError, searched(given, 'mouse', options), { param });
  await refused(NotFoundError, given.client.vectorStores.search('vs_unknown', { query: 'mouse' }));
});
