"""Attributes and filters keep the types of their values on the way from JSON: `true`, 1 and "1" are three."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from sherlock.rag.domain.models import Comparison, Compound, Filter
from sherlock.search_schemas import SearchRequest
from sherlock.vector_store_schemas import UpdateAttributesRequest

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
keys = st.text(characters, min_size=1, max_size=64)
strings = st.text(characters, max_size=8) | st.sampled_from(
    ["1", "1.0", "true", "false", "null", "NaN", "1e3"]
)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.booleans() | numbers | strings

comparisons = st.builds(
    Comparison, st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]), keys, values
) | st.builds(Comparison, st.sampled_from(["in", "nin"]), keys, st.lists(values, max_size=4).map(tuple))
filters = st.recursive(
    comparisons,
    lambda inner: st.builds(
        Compound, st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=4).map(tuple)
    ),
    max_leaves=8,
)


def as_json(where: Filter) -> dict[str, Any]:
    if isinstance(where, Compound):
        return {"type": where.type, "filters": [as_json(part) for part in where.filters]}
    return {"type": where.type, "key": where.key, "value": where.value}


def told_apart(value: Any) -> Any:
    """Python takes `True` for 1; beside the name of its type it does not."""
    if isinstance(value, tuple):
        return tuple(told_apart(one) for one in value)
    kind = (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )
    return kind, value


def parts(where: Filter) -> list[Any]:
    """The filter, flat, in reading order."""
    if isinstance(where, Compound):
        return [where.type, [parts(part) for part in where.filters]]
    return [where.type, where.key, told_apart(where.value)]


@given(where=filters)
@settings(print_blob=True)
def test_a_filter_means_what_its_json_says(where: Filter) -> None:
    request = SearchRequest.model_validate_json(to_json({"query": "q", "filters": as_json(where)}))
    read = request.to_query("vs_1", 0.7).options.filter
    assert read is not None
    assert parts(read) == parts(where)


@given(attributes=st.dictionaries(keys, values, max_size=16))
@settings(print_blob=True)
def test_attributes_are_what_their_json_says(attributes: dict[str, Any]) -> None:
    body = UpdateAttributesRequest.model_validate_json(to_json({"attributes": attributes}))
    assert body.attributes is not None
    assert {key: told_apart(value) for key, value in body.attributes.items()} == {
        key: told_apart(value) for key, value in attributes.items()
    }
