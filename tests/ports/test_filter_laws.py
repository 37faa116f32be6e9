"""What PostgreSQL lets through a filter is what plain Python lets through, for any attributes and any filter.

`test_chunk_index.py` has fixed attributes; here they are made up, and a filter's values made from them: the
same, the next number, the same in other types and in other normal forms of Unicode.
"""

import math
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes_index import qualifies
from tests.ports.test_chunk_index import Bench, texts_of

from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.models import (
    MAX_FILTER_DEPTH,
    Attributes,
    AttributeValue,
    Comparison,
    Compound,
    Filter,
    WorkspaceId,
)

FILES = 5
ORDERINGS = ["eq", "ne", "gt", "gte", "lt", "lte"]

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
strings = st.text(characters, max_size=8) | st.sampled_from(
    [
        "",
        "0",
        "1",
        "1.0",
        "true",
        "false",
        "null",
        "NaN",
        "ß",
        "SS",
        "é",
        "e\u0301",
        "İ",
        "Å",
        "\u212b",
        "ﬀ",
        "🙂",
    ]
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float)
values = st.booleans() | numbers | strings
# Two of them are one character to a reader, and one is a path to some JSON libraries.
keys = st.sampled_from(["a", "é", "e\u0301", "a.b", "0", ":a", "{a}", "日本"]) | strings
all_attributes = st.lists(
    st.none() | st.dictionaries(keys, values, max_size=4), min_size=FILES, max_size=FILES
)


def relatives(value: AttributeValue) -> list[AttributeValue]:
    """Values that a careless comparison takes for this one, or puts on its wrong side."""
    if isinstance(value, bool):
        return [value, not value, float(value), str(value).lower(), ""]
    if isinstance(value, float):
        around = [math.nextafter(value, to) for to in (-math.inf, math.inf)]
        finite = [one for one in (*around, -value) if math.isfinite(one)]
        return [value, *finite, str(value), f"{value:g}", bool(value)]
    forms = [unicodedata.normalize(form, value) for form in ("NFC", "NFD", "NFKC")]
    related: list[AttributeValue] = [value, *forms, value.upper(), value.casefold(), f"{value} ", value[:-1]]
    if value in ("0", "1", "1.0"):
        related += [float(value), bool(float(value))]
    return related


def filters(stored: list[Attributes | None]) -> st.SearchStrategy[Filter]:
    pairs = [(key, value) for attributes in stored for key, value in (attributes or {}).items()]
    known = [relative for _, value in pairs for relative in relatives(value)]
    some_key = st.sampled_from([key for key, _ in pairs]) | keys if pairs else keys
    some_value = st.sampled_from(known) | values if known else values
    comparisons = st.builds(Comparison, st.sampled_from(ORDERINGS), some_key, some_value)
    memberships = st.builds(
        Comparison, st.sampled_from(["in", "nin"]), some_key, st.lists(some_value, max_size=4).map(tuple)
    )
    leaves = comparisons | memberships
    if pairs:
        # A key with a relative of its own value: what is most easily got wrong.
        near = st.sampled_from(pairs).flatmap(
            lambda pair: st.builds(
                Comparison, st.sampled_from(ORDERINGS), st.just(pair[0]), st.sampled_from(relatives(pair[1]))
            )
        )
        leaves = near | leaves
    combinations = st.sampled_from(["and", "or"])
    trees = st.recursive(
        leaves,
        lambda inner: st.builds(Compound, combinations, st.lists(inner, min_size=1, max_size=4).map(tuple)),
        max_leaves=10,
    )
    return st.builds(wrapped, trees, st.lists(combinations, max_size=MAX_FILTER_DEPTH))


def wrapped(where: Filter, combinations: list[str]) -> Filter:
    """Nested as deep as may be, and no deeper."""
    for combination in combinations[: MAX_FILTER_DEPTH - depth(where)]:
        where = Compound(combination, (where,))  # type: ignore[arg-type]
    return where


def depth(where: Filter) -> int:
    return 1 + max(map(depth, where.filters)) if isinstance(where, Compound) else 1


@pytest.fixture
def bench(workspace: WorkspaceId, database: Database) -> Bench:
    return Bench(workspace, PostgresCatalog(database), PostgresIngestQueue(database), PgvectorIndex(database))


@pytest.fixture
async def filed(bench: Bench) -> tuple[Bench, str, list[str]]:
    """A store with files of one chunk each: their ids."""
    store = await bench.add_store()
    return bench, store, [await bench.ingest(store, [f"pump {number}"]) for number in range(FILES)]


@given(data=st.data(), stored=all_attributes, alpha=st.sampled_from([0.0, 0.7, 1.0]))
@settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_sql_lets_through_what_plain_python_would(
    filed: tuple[Bench, str, list[str]], data: st.DataObject, stored: list[Attributes | None], alpha: float
) -> None:
    bench, store, files = filed
    for file, attributes in zip(files, stored, strict=True):
        await bench.catalog.update_attributes(bench.workspace, store, file, attributes)
    for where in data.draw(st.lists(filters(stored), min_size=1, max_size=3), "filters"):
        found = await bench.search("pump", store, where=where, alpha=alpha)
        passing = {f"pump {number}" for number, one in enumerate(stored) if qualifies(where, one)}
        assert texts_of(found) == passing
