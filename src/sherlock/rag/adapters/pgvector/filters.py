"""Attribute filters as SQL conditions."""

import json
import math

from sherlock.rag.adapters.postgres import storable
from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import MAX_FILTER_DEPTH, AttributeValue, Comparison, Compound, Filter

_ORDERINGS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def filter_condition(where: Filter | None) -> tuple[str, dict[str, str | list[str]]]:
    """A condition on `m.attributes`, true or false and never null, and the values bound in it.

    Equality is jsonb's own: numbers by value, `true` is not 1. Raises `InvalidRequest`.
    """
    bound: dict[str, str | list[str]] = {}

    def bind(value: str | list[str]) -> str:
        name = f"filter_{len(bound)}"
        bound[name] = value
        return f":{name}"

    def compare(comparison: Comparison) -> str:
        if not storable(comparison.key):
            raise InvalidRequest("A filter key holds a character that cannot be stored.", param="filters")
        stored = f"(m.attributes -> CAST({bind(comparison.key)} as text))"
        value = comparison.value
        if isinstance(value, tuple):
            wanted = bind([_json(one) for one in value])
            among = f"coalesce({stored} = any(CAST(CAST({wanted} as text[]) as jsonb[])), false)"
            return among if comparison.type == "in" else f"not {among}"
        wanted = f"CAST({bind(_json(value))} as jsonb)"
        if comparison.type in _ORDERINGS:
            kind, as_kind = _ordered_as(value)
            return (
                f"case when jsonb_typeof({stored}) = '{kind}' "
                f"then {as_kind.format(stored)} {_ORDERINGS[comparison.type]} {as_kind.format(wanted)} "
                "else false end"
            )
        equal = f"coalesce({stored} = {wanted}, false)"
        return equal if comparison.type in ("eq", "in") else f"not {equal}"

    def combine(part: Filter, depth: int) -> str:
        if depth > MAX_FILTER_DEPTH:
            raise InvalidRequest(f"Filters may be nested {MAX_FILTER_DEPTH} levels deep.", param="filters")
        if isinstance(part, Compound):
            parts = [combine(inner, depth + 1) for inner in part.filters]
            neutral = "true" if part.type == "and" else "false"
            return f"({f' {part.type} '.join(parts) or neutral})"
        return compare(part)

    return ("true" if where is None else combine(where, 1)), bound


def _ordered_as(value: AttributeValue) -> tuple[str, str]:
    """The jsonb kind that `value` compares with, and how to take such a value out of jsonb."""
    if isinstance(value, bool):
        return "boolean", "CAST({} as boolean)"
    if isinstance(value, str):
        # By code point, whatever the database's language.
        return "string", "({} #>> '{{}}') collate \"C\""
    return "number", "CAST({} as numeric)"


def _json(value: AttributeValue) -> str:
    """Raises `InvalidRequest` for what jsonb cannot hold: NUL, half a character, infinity."""
    if isinstance(value, str) and not storable(value):
        raise InvalidRequest("A filter value holds a character that cannot be stored.", param="filters")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("A filter value is not a finite number.", param="filters")
    return json.dumps(value)
