"""How a search goes in PostgreSQL.

The stores, their sizes and the filter come first. Attributes belong to the file, so a filter turns into file
numbers and the exact number of chunks that qualify. Then come the document frequencies of the query's terms.
With these figures each leg picks its form. One statement runs both legs, so that they see one state of the
data, and fetches both scores of every chunk that either found. A leg that brought too few runs once more, in
its exact form.

The figures beside the constants were measured on 100,000 to 500,000 chunks: PostgreSQL 18, pgvector 0.8.6.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pgvector import HalfVector
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag import terms
from sherlock.rag.adapters.pgvector.filters import filter_condition
from sherlock.rag.adapters.pgvector.holding import Holding
from sherlock.rag.adapters.pgvector.values import page_breaks, sparse
from sherlock.rag.adapters.postgres import storable
from sherlock.rag.domain.errors import Conflict
from sherlock.rag.domain.models import Attributes, AttributeValue, Candidate, IndexQuery, WorkspaceId

EF_SEARCH = 600
"""Graph nodes kept in view. Recall@50 of 200 short queries in 100,000 vectors, two graphs: 0.966 and 0.962
with 300, 0.977 and 0.977 with 500, 0.986 and 0.984 with 600, 0.994 and 0.993 with 800. What is missing are a
few queries that get lost in a wrong part of the graph: with 300, three of the 200 find less than a fifth. A
graph of m = 24 and ef_construction = 128 takes twice the time to build and brings 0.975 with 300, 0.993 with
600."""
SCAN_COST_RATIO = 27.0
"""Scanning n vectors costs 0.7 us each, walking a graph of N to 50 that qualify 11 us * 50 * N / n; equal at
n = 27 * sqrt(N), and where `FILTERED_WINDOWS` times as many are walked to, at n = 27 * sqrt(4 * N)."""
FILTERED_WINDOWS = 4
"""Times as many windows as wanted where less than half of the graph qualifies, or a filter decides: the walk
goes on from what it threw away, and the first that qualify are not the nearest. Recall@50 with a filter that
keeps half of 12,000 chunks and goes against the question's topic: 0.80 with 1, 0.83 with 2, 1.0 with 4, at no
more time. A store with 9 % of 111,100 chunks: 0.94 with 1, 1.0 by the scan that is cheaper than 4."""
MAX_WINDOWS = 1_000
"""Most windows the graph is asked for; it brings them in nearly the right order."""
KEYWORD_BUDGET = 4_000
"""Rows that the lists of a query's rarest terms may bring, as many as score in 5 ms; of the rest, a pair."""
FILTERED_KEYWORD_BUDGET = 10_000
"""The same where a filter throws most of the rows away."""
PAIR_ROWS = 1_000
"""Two terms expected to meet more often than this are too common to be looked up together."""
KEYWORD_SCAN_CHUNKS = 12_000
"""Filtered chunks that are scored one by one rather than looked up: 6 ms. Looked up, 10,000 of 100,000 had
recall@50 0.968 in 5 ms."""
TEXTS_AT_ONCE = 200
"""Chunks whose text is read in one go, to see whether they hold a phrase: 20 ms."""

# ── statements ──────────────────────────────────────────────────────────────

# For the transaction only: how the graph is walked, and that it goes on where too few of the nearest qualify;
# and that statements are planned once a connection rather than at each search, since the form of each leg is
# chosen here and not by the planner: 18 to 21 ms of CPU instead of 22 to 25 at 100,000 chunks, 2.7 instead of
# 5.5 at 100, in one run on a slow machine.
# The planner does not know what comparing arrays costs, and would rather read the whole table than the lists
# of a few terms (56 ms instead of 5, at 10,000 chunks); without statistics it takes a large store for a small
# one, and would rather sort it than walk the graph.
_SEARCH_SETTINGS = text(f"""
    select set_config('hnsw.ef_search', '{EF_SEARCH}', true),
           set_config('hnsw.iterative_scan', 'relaxed_order', true),
           set_config('enable_seqscan', 'off', true),
           set_config('enable_sort', 'off', true),
           set_config('plan_cache_mode', 'force_generic_plan', true)
""")

# How much a filter lets through decides which index serves it.
_PLAN_EACH = text("select set_config('plan_cache_mode', 'force_custom_plan', true)")

# Sizes of each store and of the part of it that qualifies: {filter} is a condition on m.attributes. The
# numbers of the files that qualify come only when not all do. A chunk is found as soon as it is published, a
# moment before its membership is `completed`; one of a cancelled or failed membership is not, nor one of a
# file that has expired and waits to be removed. Mostly there is none, and then no file is looked up. "offset
# 0" has the condition worked out once a file rather than once a sum: 19 ms instead of 30 at 90,000 files.
_STORES = """
    with expired as materialized (
        select file_no from knowledge_files where workspace_id = :workspace and expires_at <= now()
    )
    select s.store_no, s.dimension, size.*,
           (select reltuples from pg_class where oid = to_regclass('chunk_windows')) as all_windows
    from vector_stores s
    cross join lateral (
        select coalesce(sum(chunk_count), 0) as all_chunks,
               coalesce(sum(chunk_count) filter (where qualifies), 0) as chunks,
               coalesce(sum(window_count) filter (where qualifies), 0) as windows,
               coalesce(ceil(max(window_count::real / chunk_count)), 1) as windows_per_chunk,
               coalesce(bool_and(qualifies), true) as whole,
               case when not bool_and(qualifies)
                    then array_agg(file_no) filter (where qualifies) end as file_nos
        from (
            select m.file_no, m.chunk_count, m.window_count,
                   m.status in ('completed', 'in_progress') and {filter}
                   and (not exists (select from expired) or m.file_no not in (select file_no from expired))
                       as qualifies
            from vector_store_files m
            where m.store_no = s.store_no and m.chunk_count > 0
            offset 0
        ) as file
    ) as size
    where s.workspace_id = :workspace and s.id = any(CAST(:stores as text[]))
"""

# Document frequencies of the query's terms, store by store.
_DOCUMENT_FREQUENCIES = text("""
    select asked.term, d.store_no, d.key, d.df
    from unnest(CAST(:terms as int[]), CAST(:store_nos as int[]), CAST(:keys as int[]))
        as asked (term, store_no, key)
    join term_df d on d.store_no = asked.store_no and d.key = asked.key
    where d.df > 0
""")

# Chunks of a file that is being published in parts are in the tables, and in nobody's results.
_PUBLISHED = "(store_no, file_no) not in (select store_no, file_no from publishing)"

# Dense leg by the graph. The cast is how the index is written; each dimension has an index of its own.
_DENSE_GRAPH = """
    select chunk_id from (
        select chunk_id, embedding::halfvec({dimension}) <#> CAST(:vector as halfvec) as distance
        from chunk_windows as w
        where {within} and dim = {dimension} {holding}
        order by embedding::halfvec({dimension}) <#> CAST(:vector as halfvec)
        limit :windows
    ) as nearest
    group by chunk_id
    order by min(distance), chunk_id
    limit :candidates
"""

# Dense leg by scanning every window that qualifies; "offset 0" keeps the planner away from the graph.
_DENSE_SCAN = """
    select chunk_id from (
        select chunk_id, embedding from chunk_windows as w
        where {within} and dim = {dimension} {holding} offset 0
    ) as qualifying
    group by chunk_id
    order by min(embedding <#> CAST(:vector as halfvec)), chunk_id
    limit :candidates
"""

# Keyword leg by the lists of terms. Keys of other stores may be equal, hence {within}; {pairs} adds the
# chunks that hold two common terms at once.
_KEYWORD_LISTS = """
    select chunk_id from chunk_terms
    where {within} and (keys && CAST(:keys as int[]) {pairs}) {holding}
    order by weights <#> CAST(:terms as sparsevec), chunk_id
    limit :candidates
"""

# Keyword leg by scoring every chunk that qualifies.
_KEYWORD_SCAN = """
    select chunk_id from (
        select chunk_id, weights from chunk_terms where {within} {holding} offset 0
    ) as qualifying
    where {matching}
    order by weights <#> CAST(:terms as sparsevec), chunk_id
    limit :candidates
"""

_MATCHING = "weights <#> CAST(:terms as sparsevec) < 0"
_NO_LEG = "select null::bigint where false"

# What a leg finds, in its order.
_RANKED = """
    with ranked as materialized (
        select chunk_id, row_number() over () as place from ({leg}) as leg (chunk_id)
    )
    select c.id from ranked join knowledge_chunks c on c.id = ranked.chunk_id
    where c.workspace_id = :workspace and c.store_no = any(CAST(:store_nos as int[]))
    order by ranked.place
"""

# Texts to look for phrases in.
_TEXTS = text("""
    select id, content from knowledge_chunks
    where workspace_id = :workspace and id = any(CAST(:chunks as bigint[]))
""")

# A leg whose chunks are known.
_KNOWN = "select unnest(CAST(:{name} as bigint[]))"

# Both legs, and both scores of what they found.
_SEARCH = """
    with dense (chunk_id) as materialized ({dense}),
    keyword (chunk_id) as materialized ({keyword}),
    found as (
        select chunk_id, bool_or(dense) as by_dense, bool_or(not dense) as by_keyword
        from (
            select chunk_id, true from dense union all select chunk_id, false from keyword
        ) as leg (chunk_id, dense)
        group by chunk_id
    )
    select c.id, c.vector_store_id, c.file_id, f.filename, CAST(m.attributes as text) as attributes,
           c.chunk_index, c.content, c.char_start, c.char_end, c.page, c.heading, c.gap, c.page_breaks,
           {cosine} as cosine,
           -(t.weights <#> CAST(:terms as sparsevec)) as bm25,
           found.by_dense, found.by_keyword
    from found
    join knowledge_chunks c on c.id = found.chunk_id
    join chunk_terms t on t.chunk_id = c.id and t.store_no = c.store_no
    join vector_store_files m on m.store_no = c.store_no and m.file_no = c.file_no
    join knowledge_files f on f.file_no = c.file_no
    where c.workspace_id = :workspace and c.store_no = any(CAST(:store_nos as int[]))
"""

# The best window counts.
_COSINE = """
    (select max(-(w.embedding <#> CAST(:vector as halfvec)))
     from chunk_windows w where w.chunk_id = c.id and w.store_no = c.store_no)
"""


async def find_candidates(
    connection: AsyncConnection, workspace_id: WorkspaceId, query: IndexQuery
) -> list[Candidate]:
    """`ChunkIndex.search` inside a transaction."""
    await connection.execute(_SEARCH_SETTINGS)
    scope = await _read_scope(connection, workspace_id, query)
    if scope.chunks == 0:
        return []
    if scope.files:
        await connection.execute(_PLAN_EACH)
    keywords = await _read_keywords(connection, scope, query.text)
    holding = await asyncio.to_thread(Holding.of, query.operators, scope.store_nos)
    search = _Search(workspace_id, query, scope, keywords, holding)
    if holding.in_text:
        found = await search.run(connection, *await search.legs_by_text(connection))
        return [_candidate(row, keywords.best_score) for row in found]
    dense, keyword = search.dense_leg(), search.keyword_leg()
    found = await search.run(connection, dense, keyword)
    by_dense = [row for row in found if row.by_dense]
    by_keyword = [row for row in found if row.by_keyword]
    if search.falls_short(dense, by_dense):
        by_dense = await search.run(connection, search.dense_leg(exact=True), _SKIPPED)
    if search.falls_short(keyword, by_keyword):
        by_keyword = await search.run(connection, _SKIPPED, search.keyword_leg(exact=True))
    chunks = {row.id: row for row in [*by_dense, *by_keyword]}
    return [_candidate(row, keywords.best_score) for row in chunks.values()]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a search may look at."""

    whole_stores: list[int]
    files: dict[int, list[int]]
    """The stores of which only some files qualify, and these."""
    all_chunks: int
    """Of the stores, filter or not: the n of idf."""
    chunks: int
    windows: int
    windows_per_chunk: int
    """The most that a file's chunks have on average."""
    all_windows: int
    """In the whole table, as of its last analysis."""

    @property
    def store_nos(self) -> list[int]:
        return [*self.whole_stores, *self.files]

    @property
    def condition(self) -> str:
        choices = [
            f"(store_no = :store_{number} and file_no = any(CAST(:files_{number} as int[])))"
            for number in range(len(self.files))
        ]
        if self.whole_stores:
            choices.append("store_no = any(CAST(:whole_stores as int[]))")
        return f"({' or '.join(choices)}) and {_PUBLISHED}"

    @property
    def parameters(self) -> dict[str, Any]:
        bound: dict[str, Any] = {"whole_stores": self.whole_stores} if self.whole_stores else {}
        for number, (store_no, file_nos) in enumerate(self.files.items()):
            bound |= {f"store_{number}": store_no, f"files_{number}": file_nos}
        return bound


@dataclass(frozen=True, slots=True)
class _Keywords:
    """The query's terms as they stand in the stores."""

    weights: dict[int, float]
    """By term; only terms that some chunk holds."""
    df: dict[int, int]
    """By term, over all stores."""
    keys: dict[int, dict[int, int]]
    """By term: its key in each store that knows it."""
    best_score: float


@dataclass(frozen=True, slots=True)
class _Leg:
    """A query for chunk ids."""

    sql: str
    parameters: Mapping[str, Any]
    estimated: bool
    """Whether it relies on an estimate, and may bring fewer chunks than there are."""


_SKIPPED = _Leg(_NO_LEG, {}, estimated=False)


async def _read_scope(connection: AsyncConnection, workspace_id: WorkspaceId, query: IndexQuery) -> _Scope:
    condition, bound = filter_condition(query.filter)
    stores = [store for store in query.vector_store_ids if storable(store)]
    statement = text(_STORES.format(filter=condition))
    rows = (await connection.execute(statement, bound | {"workspace": workspace_id, "stores": stores})).all()
    if query.vector is not None and any(row.dimension != len(query.vector) for row in rows):
        raise Conflict("The vector store was built with another embedding model.")
    return _Scope(
        whole_stores=[row.store_no for row in rows if row.whole and row.chunks],
        files={row.store_no: row.file_nos for row in rows if row.file_nos},
        all_chunks=sum(row.all_chunks for row in rows if row.chunks),
        chunks=sum(row.chunks for row in rows),
        windows=sum(row.windows for row in rows),
        windows_per_chunk=int(max((row.windows_per_chunk for row in rows), default=1)),
        all_windows=int(max((row.all_windows for row in rows), default=0)),
    )


async def _read_keywords(connection: AsyncConnection, scope: _Scope, question: str) -> _Keywords:
    asked, bound = await asyncio.to_thread(_ask, question, scope.store_nos)
    df: dict[int, int] = {}
    keys: dict[int, dict[int, int]] = {}
    for row in await connection.execute(_DOCUMENT_FREQUENCIES, bound):
        df[row.term] = df.get(row.term, 0) + row.df
        keys.setdefault(row.term, {})[row.store_no] = row.key
    weights = terms.query_weights(asked, df, scope.all_chunks)
    known = {term: weight for term, weight in weights.items() if term in df}
    return _Keywords(known, df, keys, terms.best_score(weights))


def _ask(question: str, store_nos: Sequence[int]) -> tuple[list[str], dict[str, list[int]]]:
    """The question's terms, and what `_DOCUMENT_FREQUENCIES` binds: a key for each term in each store."""
    asked = terms.terms(question)
    pairs = [(key, store_no) for key in {terms.term_key(term) for term in asked} for store_no in store_nos]
    return asked, {
        "terms": [term for term, _ in pairs],
        "store_nos": [store_no for _, store_no in pairs],
        "keys": [terms.store_key(store_no, term) for term, store_no in pairs],
    }


@dataclass(frozen=True, slots=True)
class _Search:
    workspace_id: WorkspaceId
    query: IndexQuery
    scope: _Scope
    keywords: _Keywords
    holding: Holding

    def dense_leg(self, *, exact: bool = False) -> _Leg:
        """The graph, or a scan where so few windows qualify that it is cheaper."""
        query, scope = self.query, self.scope
        if query.vector is None or query.alpha <= 0:
            return _SKIPPED
        within = scope.condition
        shape = {"within": within, "dimension": len(query.vector), "holding": self.holding.of_windows(within)}
        all_windows = max(scope.all_windows, scope.windows)
        part = scope.files or self.holding.barred_keys or scope.windows * 2 < all_windows
        more = FILTERED_WINDOWS if part else 1
        if exact or scope.windows <= SCAN_COST_RATIO * math.sqrt(more * all_windows):
            return _Leg(_DENSE_SCAN.format(**shape), {"candidates": query.candidates}, estimated=False)
        windows = min(query.candidates * scope.windows_per_chunk * more, MAX_WINDOWS)
        limits = {"windows": max(windows, query.candidates), "candidates": query.candidates}
        return _Leg(_DENSE_GRAPH.format(**shape), limits, estimated=True)

    def keyword_leg(self, *, exact: bool = False) -> _Leg:
        """The rarest terms' lists up to a budget of rows; of the terms left out, the two rarest as a pair.

        Common words alone make no good hit, so the terms left out are missed only where a filter may have
        thrown away all that the rare ones brought, or where no dense leg fills the page.
        """
        query, scope, keywords = self.query, self.scope, self.keywords
        phrases = self.holding.phrases
        if query.alpha >= 1 or not (keywords.weights or phrases):
            return _SKIPPED
        limit: dict[str, Any] = {"candidates": query.candidates}
        shape = {"within": scope.condition, "holding": self.holding.of_terms()}
        if phrases or (scope.files and scope.chunks <= KEYWORD_SCAN_CHUNKS):
            matching = "true" if phrases else _MATCHING  # a phrase of stop words scores 0
            return _Leg(_KEYWORD_SCAN.format(**shape, matching=matching), limit, estimated=False)
        by_rarity = sorted(keywords.weights, key=lambda term: (keywords.df[term], term))
        budget = FILTERED_KEYWORD_BUDGET if scope.files else KEYWORD_BUDGET
        totals = accumulate(keywords.df[term] for term in by_rarity)
        listed = len(by_rarity) if exact else max(1, sum(total <= budget for total in totals))
        pairs = self._pairs(by_rarity[listed : listed + 2])
        sql = _KEYWORD_LISTS.format(
            **shape,
            pairs="".join(f" or keys @> CAST(:{name} as int[])" for name in pairs),
        )
        keys = [key for term in by_rarity[:listed] for key in keywords.keys[term].values()]
        thinned = bool(scope.files or self.holding.barred_keys)
        missed = listed < len(by_rarity) and (thinned or query.alpha <= 0)
        return _Leg(sql, limit | {"keys": keys} | pairs, estimated=missed)

    def _pairs(self, two: Sequence[int]) -> dict[str, list[int]]:
        """Two terms' keys for each store that knows both, by parameter name; none if they meet too often."""
        if len(two) < 2:
            return {}
        first, second = two
        df, keys = self.keywords.df, self.keywords.keys
        if df[first] * df[second] > PAIR_ROWS * self.scope.all_chunks:
            return {}
        both = keys[first].keys() & keys[second].keys()
        return {
            f"pair_{number}": [keys[first][store_no], keys[second][store_no]]
            for number, store_no in enumerate(sorted(both))
        }

    def falls_short(self, leg: _Leg, found: Sequence[Row[Any]]) -> bool:
        """Whether the leg, by its estimate, brought fewer chunks than there are.

        A filter that goes with the topic defeats the estimates: the graph gives up before it meets enough.
        """
        return leg.estimated and len(found) < min(self.query.candidates, self.scope.chunks)

    async def legs_by_text(self, connection: AsyncConnection) -> tuple[_Leg, _Leg]:
        """Both legs' best chunks by an exact scan, of those whose text holds what it must.

        Texts are read in the order of the leg, until there are enough: phrases of rare words leave few to
        read, phrases of common words are soon met.
        """
        met: dict[int, bool] = {}
        legs = []
        for name, leg in (("dense", self.dense_leg(exact=True)), ("keyword", self.keyword_leg(exact=True))):
            found = [] if leg is _SKIPPED else await self._holding(connection, leg, met)
            legs.append(_Leg(_KNOWN.format(name=f"by_{name}"), {f"by_{name}": found}, estimated=False))
        dense, keyword = legs
        return dense, keyword

    async def _holding(self, connection: AsyncConnection, leg: _Leg, met: dict[int, bool]) -> list[int]:
        """The leg's first chunks that hold what they must; `met` remembers what was read."""
        bound = {**self._bound, **leg.parameters, "candidates": None}
        ranked = list((await connection.execute(text(_RANKED.format(leg=leg.sql)), bound)).scalars())
        found: list[int] = []
        for start in range(0, len(ranked), TEXTS_AT_ONCE):
            part = ranked[start : start + TEXTS_AT_ONCE]
            unread = [chunk for chunk in part if chunk not in met]
            rows = await connection.execute(_TEXTS, {"workspace": self.workspace_id, "chunks": unread})
            met |= await asyncio.to_thread(
                lambda texts: {chunk: self.holding.is_met_by(content) for chunk, content in texts}, rows.all()
            )
            found += [chunk for chunk in part if met.get(chunk)]
            if len(found) >= self.query.candidates:
                break
        return found[: self.query.candidates]

    @property
    def _bound(self) -> dict[str, Any]:
        """The values that all statements of the search have."""
        vector = self.query.vector
        return {
            "workspace": self.workspace_id,
            "store_nos": self.scope.store_nos,
            "terms": sparse(self.keywords.weights),
            **({} if vector is None else {"vector": HalfVector(list(vector))}),
            **self.scope.parameters,
            **self.holding.parameters,
        }

    async def run(self, connection: AsyncConnection, dense: _Leg, keyword: _Leg) -> list[Row[Any]]:
        cosine = "0.0" if self.query.vector is None else _COSINE
        statement = text(_SEARCH.format(dense=dense.sql, keyword=keyword.sql, cosine=cosine))
        bound = {**self._bound, **dense.parameters, **keyword.parameters}
        return list(await connection.execute(statement, bound))


def _candidate(row: Row[Any], best_score: float) -> Candidate:
    return Candidate(
        chunk_id=row.id,
        vector_store_id=row.vector_store_id,
        file_id=row.file_id,
        filename=row.filename,
        attributes=_attributes(row.attributes),
        chunk_index=row.chunk_index,
        text=row.content,
        start=row.char_start,
        end=row.char_end,
        page=row.page,
        heading=row.heading,
        cosine=float(row.cosine),
        keyword=min(max(row.bm25 / best_score, 0.0), 1.0) if best_score else 0.0,
        gap=row.gap,
        page_breaks=page_breaks(row.page_breaks),
    )


# Made once: `json.loads` makes one for each call that changes how numbers are read.
_JSON = json.JSONDecoder(parse_int=float)


def _attributes(stored: str | None) -> Attributes | None:
    """jsonb writes 2.0 as 2; numbers are floats here."""
    if stored is None:
        return None
    attributes: dict[str, AttributeValue] = _JSON.decode(stored)
    return attributes
