"""Tables and records: CSV, JSON, JSON Lines. Each value stands as it was written, beside its field's name."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Final

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text

_SAMPLE_CHARS: Final = 1 << 16
_SAMPLE_RECORDS: Final = 50
_LONGEST_RECORD: Final = 1 << 20  # characters; what is longer has a quote that was never closed
_LONGEST_NAME: Final = 100  # characters; it stands before the column's every value
_LARGEST_JSON_BYTES: Final = 16 << 20  # read whole; values take some 20 times their bytes, up to 30
_DEEPEST_INDENT: Final = 8
_DELIMITERS: Final = ",;\t|"
_BLANKS: Final = re.compile(r"\s+")
_NUMBER: Final = re.compile(r"[-+(]?\W?\d[\d.,:/\s-]*%?\)?")
csv.field_size_limit(2 * _LONGEST_RECORD)


def parse_csv(path: Path) -> Iterator[Section]:
    """The header row, then one line a record, `name: value; ...`; without a header the values alone."""
    with text.open_text(path) as file:
        yield text.decoded_from(file)
        sample = file.read(_SAMPLE_CHARS)
        delimiter = _delimiter(sample)
        lines = chain(io.StringIO(sample + file.readline(_LONGEST_RECORD)), text.lines(file, _LONGEST_RECORD))
        records = (
            [_one_line(field) for field in record]
            for record in _records(lines, delimiter)
            if any(field.strip() for field in record)
        )
        yield from text.gather(_record_lines(records, delimiter), records=True)


def parse_json(path: Path) -> Iterator[Section]:
    """`name: value` lines, indented by depth; what is no sound JSON, or too much of it, as it stands."""
    try:
        source, decoded = _source(path)
        value = _loads(source)
    except (ValueError, RecursionError):
        yield from text.parse(path)
        return
    yield decoded
    yield from text.gather(_json_paragraphs(value))


def parse_jsonl(path: Path) -> Iterator[Section]:
    """As JSON, a paragraph for each line of the file; a broken line stands as it is."""
    with text.open_text(path) as file:
        yield text.decoded_from(file)
        yield from text.gather(chain.from_iterable(_jsonl_pieces(text.lines(file, _LARGEST_JSON_BYTES))))


def load_json(path: Path) -> Any:
    """The file's value in plain types. Raises `ValueError` or `RecursionError` where it cannot be read."""
    return json.loads(_source(path)[0])


# ── CSV ─────────────────────────────────────────────────────────────────────


def _delimiter(sample: str) -> str:
    """The delimiter that gives most of the first records the same number of fields."""
    best, evenness = ",", 0
    for delimiter in _DELIMITERS:
        records = csv.reader(io.StringIO(sample), delimiter=delimiter)
        widths = [len(record) for record in islice(records, _SAMPLE_RECORDS)]
        even = max((widths.count(width) for width in set(widths) if width > 1), default=0)
        if even > evenness:
            best, evenness = delimiter, even
    return best


def _records(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """The fields of each record; one that grows too long is cut, and the line after it begins the next."""
    size = 0

    def until_too_long(first: str) -> Iterator[str]:
        nonlocal size
        for line in chain([first], lines):
            size += len(line)
            yield line
            if size > _LONGEST_RECORD:
                return

    for first in lines:
        size = 0
        for record in csv.reader(until_too_long(first), delimiter=delimiter, skipinitialspace=True):
            size = 0
            yield record


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
        and all(0 < len(field) <= _LONGEST_NAME for field in record)
        and len({*record}) == len(record)
        and not any(_NUMBER.fullmatch(field) for field in record)
    )


def _one_line(field: str) -> str:
    return _BLANKS.sub(" ", field).strip()


# ── JSON ────────────────────────────────────────────────────────────────────


class _Object(list[tuple[str, Any]]):
    """A JSON object as pairs, so that a name that comes twice keeps both values."""


def _source(path: Path) -> tuple[str, Section]:
    if path.stat().st_size > _LARGEST_JSON_BYTES:
        raise ValueError("more than can be read whole")
    with text.open_text(path) as file:
        return file.read(), text.decoded_from(file)


def _loads(source: str) -> Any:
    # Numbers stay as they are written: 1.50 is not 1.5.
    return json.loads(source, object_pairs_hook=_Object, parse_float=str, parse_int=str, parse_constant=str)


def _jsonl_pieces(lines: Iterable[str]) -> Iterator[Iterable[str]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = _loads(line)
        except (ValueError, RecursionError):
            yield [line, "\n"]
        else:
            yield _json_paragraphs(value)


def _json_paragraphs(value: Any) -> Iterator[str]:
    """The entries of a list at the top are paragraphs, anything else is one."""
    for entry in [value] if isinstance(value, _Object) or not isinstance(value, list) else value:
        yield from _json_lines(entry)
        yield "\n"


def _json_lines(entry: Any) -> Iterator[str]:
    """Lines of one value. The open lists are kept here: a file may nest deeper than functions can."""
    open_values = [_members([entry], 0)]
    while open_values:
        for depth, name, value in open_values[-1]:
            indent = "  " * min(depth, _DEEPEST_INDENT)
            lead = f"{indent}{name}: " if name else indent
            if not isinstance(value, list):
                yield f"{lead}{_scalar(value)}\n"
            elif isinstance(value, _Object) or any(isinstance(item, list) for item in value):
                if name and value:
                    yield f"{indent}{name}:\n"
                open_values.append(_members(value, depth + bool(name)))
                break
            elif value:
                yield lead + ", ".join(_scalar(item) for item in value) + "\n"
        else:
            open_values.pop()


def _members(value: list[Any], depth: int) -> Iterator[tuple[int, str, Any]]:
    """Depth, name (none in a list) and value of each."""
    if isinstance(value, _Object):
        return ((depth, name, member) for name, member in value)
    return ((depth, "", item) for item in value)


def _scalar(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if value in (True, False, None) else str(value)
