"""Tables and records: CSV, JSON, JSON Lines. Each value stands as it was written, beside its field's name."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Final

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text

_SAMPLE_RECORDS: Final = 50
_DELIMITERS: Final = ",;\t|"
_NUMBER: Final = re.compile(r"[-+(]?\W?\d[\d.,:/\s-]*%?\)?")
csv.field_size_limit(1 << 27)


def parse_csv(path: Path) -> Iterator[Section]:
    """The header row, then one line a record, `name: value; ...`; without a header the values alone."""
    delimiter = _delimiter(path)
    with text.open_text(path) as file:
        records = (
            [_one_line(field) for field in record]
            for record in csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            if any(field.strip() for field in record)
        )
        yield from text.gather(_record_lines(records, delimiter))


def parse_json(path: Path) -> Iterator[Section]:
    """`name: value` lines, indented by depth; text that is no sound JSON as it stands."""
    with text.open_text(path) as file:
        try:
            pieces = [*_json_paragraphs(_load(file.read()))]
        except (ValueError, RecursionError):
            yield from text.parse(path)
            return
    yield from text.gather(pieces)


def parse_jsonl(path: Path) -> Iterator[Section]:
    """As JSON, a paragraph for each line of the file; a broken line stands as it is."""
    with text.open_text(path) as file:
        yield from text.gather(chain.from_iterable(_jsonl_pieces(file)))


# ── CSV ─────────────────────────────────────────────────────────────────────


def _delimiter(path: Path) -> str:
    """The delimiter that gives most of the first records the same number of fields."""
    best, evenness = ",", 0
    for delimiter in _DELIMITERS:
        with text.open_text(path) as file:
            widths = [
                len(record) for record in islice(csv.reader(file, delimiter=delimiter), _SAMPLE_RECORDS)
            ]
        even = max((widths.count(width) for width in set(widths) if width > 1), default=0)
        if even > evenness:
            best, evenness = delimiter, even
    return best


def _record_lines(records: Iterator[list[str]], delimiter: str) -> Iterator[str]:
    first = next(records, [])
    names = first if _is_header(first) else []
    yield delimiter.join(first) + "\n"
    for record in records:
        if names:
            pairs = zip_longest(names[: len(record)], record)
            yield "; ".join(f"{name}: {field}" if name else field for name, field in pairs if field) + "\n"
        else:
            yield delimiter.join(record) + "\n"


def _is_header(record: list[str]) -> bool:
    return (
        len(record) > 1
        and all(record)
        and len({*record}) == len(record)
        and not any(_NUMBER.fullmatch(field) for field in record)
    )


def _one_line(field: str) -> str:
    return " ".join(field.split())


# ── JSON ────────────────────────────────────────────────────────────────────


class _Object(list[tuple[str, Any]]):
    """A JSON object as pairs, so that a name that comes twice keeps both values."""


def _load(source: str) -> Any:
    # Numbers stay as they are written: 1.50 is not 1.5.
    return json.loads(source, object_pairs_hook=_Object, parse_float=str, parse_int=str, parse_constant=str)


def _jsonl_pieces(lines: Iterable[str]) -> Iterator[Iterable[str]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            yield [*_json_paragraphs(_load(line))]
        except (ValueError, RecursionError):
            yield [line, "\n"]


def _json_paragraphs(value: Any) -> Iterator[str]:
    """The entries of a list at the top are paragraphs, anything else is one."""
    for entry in [value] if isinstance(value, _Object) or not isinstance(value, list) else value:
        yield from _json_lines(entry)
        yield "\n"


def _json_lines(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    indent = "  " * depth
    lead = f"{indent}{name}: " if name else indent
    match value:
        case _Object() | [] if not value:
            pass
        case _Object():
            if name:
                yield f"{indent}{name}:\n"
            for key, member in value:
                yield from _json_lines(member, key, depth + bool(name))
        case [*items] if all(not isinstance(item, list) for item in items):
            yield lead + ", ".join(_scalar(item) for item in items) + "\n"
        case [*items]:
            if name:
                yield f"{indent}{name}:\n"
            for item in items:
                yield from _json_lines(item, "", depth + bool(name))
        case _:
            yield f"{lead}{_scalar(value)}\n"


def _scalar(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value in (True, False, None) else str(value)
