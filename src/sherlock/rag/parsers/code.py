"""Source code: a section for each symbol (class, function, type), under the names it stands in."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text

_LONGEST_LINE: Final = 500  # characters; a longer one declares nothing that a reader would look for
_LONGEST_LEAD: Final = 200  # lines
_INDENT_WIDTH: Final = 8  # columns of a tab

# What stands before a declaration, and belongs to it: decorators, attributes, comments.
_LEAD: Final = re.compile(r"\s*(@|#(?!include|define|if|endif|else)|//|/\*|\*|--|;;)")

_QUOTES: Final = ('"""', "'''")  # of strings that go over several lines

_MODIFIERS: Final = (
    r"(?:(?:export|default|declare|pub(?:\([a-z]+\))?|public|private|protected|internal|static|final|abstract|"
    r"async|unsafe|sealed|partial|open|override|virtual|data|case|inline|const|extern|local)\s+){0,6}"
)
_KEYWORD: Final = re.compile(
    rf"{_MODIFIERS}(?:class|struct|interface|enum|trait|impl|union|record|protocol|extension|object|module|"
    rf"namespace|function\*?|func|fun|fn|def|defmodule|defp|sub|proc|type|message|service|rpc)"
    rf"(?:<[^>]{{0,80}}>)?\s+"
    rf"(?:\([^)]{{0,80}}\)\s*)?(?:<[^>]{{0,80}}>\s*)?(?P<name>[\w$.:?!]+)"
)
_ARROW: Final = re.compile(
    rf"{_MODIFIERS}(?:let|var|const)\s+(?P<name>[\w$]+)\s*(?::[^=]{{0,80}})?=\s*(?:async\s*)?(?:function|\()"
)
# `int main(...) {` and methods of Java, C#, C++; the words before the name are its type.
_TYPED: Final = re.compile(
    rf"{_MODIFIERS}(?:[\w$:<>,\[\]*&]+\s+){{1,4}}[*&]*(?P<name>~?[A-Za-z_$][\w$:~]*)\s*"
    r"\([^;=]*(?:\)\s*(?:const|noexcept|throws [\w, ]+)?\s*\{?|,)\s*$"
)
_NO_NAMES: Final = frozenset(
    [
        "if",
        "for",
        "while",
        "switch",
        "return",
        "else",
        "catch",
        "do",
        "new",
        "throw",
        "await",
        "delete",
        "case",
    ]
)
_SQL: Final = re.compile(
    r"create\s+(?:or\s+replace\s+)?(?:unique\s+)?(?:materialized\s+)?"
    r"(?:table|view|function|procedure|trigger|index|type|schema)\s+(?:if\s+not\s+exists\s+)?(?P<name>[\w.\"]+)",
    re.IGNORECASE,
)
_SHELL: Final = re.compile(r"(?:function\s+)?(?P<name>[\w:.-]+)\s*\(\)\s*\{?")

_BRACES: Final = """
    js mjs cjs jsx ts mts cts tsx vue svelte go rs java kt kts scala groovy swift dart php zig sol
    proto thrift
"""
_TYPED_NAMES: Final = "c h cc cpp cxx hh hpp cs java groovy dart m mm"
_WORDS: Final = "py pyi pyx rb lua jl ex exs pl pm ml mli fs fsx vb nim graphql"


def _extensions(names: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in names.split())


_PATTERNS: Final[list[tuple[frozenset[str], tuple[re.Pattern[str], ...]]]] = [
    (_extensions(_TYPED_NAMES), (_KEYWORD, _TYPED)),
    (_extensions(_BRACES), (_KEYWORD, _ARROW)),
    (_extensions(_WORDS), (_KEYWORD,)),
    (_extensions("sql"), (_SQL,)),
    (_extensions("sh bash zsh"), (_SHELL,)),
]


def _parser(patterns: tuple[re.Pattern[str], ...]) -> Callable[[Path], Iterator[Section]]:
    return partial(_parse, patterns=patterns)


def _parse(path: Path, patterns: tuple[re.Pattern[str], ...]) -> Iterator[Section]:
    """The text as it stands; a symbol takes the comments and decorators above it along."""
    with text.open_text(path) as file:
        for symbols, found in groupby(_owned(text.lines(file), patterns), key=itemgetter(0)):
            heading = " > ".join(symbol.name for symbol in symbols) or None
            for section in text.gather((line for _, line in found), heading):
                yield replace(section, whole=heading is not None)


class _Symbol(NamedTuple):
    name: str
    indent: int
    line: int
    """Two that follow each other may have the same name."""


def _owned(
    lines: Iterable[str], patterns: tuple[re.Pattern[str], ...]
) -> Iterator[tuple[tuple[_Symbol, ...], str]]:
    """Each line with the symbols that it stands in, outermost first."""
    symbols: tuple[_Symbol, ...] = ()
    lead: list[str] = []
    """Lines that belong to the next symbol, if one comes."""
    quoted = False
    for number, line in enumerate(lines):
        bare = line.strip()
        inside, quoted = quoted, quoted ^ (sum(map(line.count, _QUOTES)) % 2 == 1)
        if not inside:  # what stands in quotes is text, though it may show code
            if (not bare or _LEAD.match(line[:_LONGEST_LINE])) and len(lead) < _LONGEST_LEAD:
                lead.append(line)
                continue
            indent = _indent(line)
            outer = tuple(
                kept for kept in symbols if kept.indent < indent or (kept.indent == indent and _closes(bare))
            )
            if name := _symbol(bare, patterns):
                blanks = next((at for at, row in enumerate(lead) if row.strip()), len(lead))
                yield from ((symbols, row) for row in lead[:blanks])
                lead, outer = lead[blanks:], (*outer, _Symbol(name, indent, number))
            symbols = outer
        yield from ((symbols, row) for row in [*lead, line])
        lead = []
    yield from ((symbols, row) for row in lead)


def _symbol(bare: str, patterns: tuple[re.Pattern[str], ...]) -> str | None:
    if len(bare) > _LONGEST_LINE or bare.partition(" ")[0] in _NO_NAMES:
        return None
    for pattern in patterns:
        if (found := pattern.match(bare)) and found["name"] not in _NO_NAMES:
            return found["name"].rstrip(":")
    return None


def _indent(line: str) -> int:
    expanded = line[:200].expandtabs(_INDENT_WIDTH)
    return len(expanded) - len(expanded.lstrip())


def _closes(bare: str) -> bool:
    """Whether a line as far left as its symbol still belongs to it: an end, or a brace in its own line."""
    return bare[:1] in ("{", "}", ")", "]") or bare.rstrip(";") in ("end", "fi", "done", "$$")


PARSERS: Final[dict[str, Callable[[Path], Iterator[Section]]]] = {
    extension: _parser(patterns) for extensions, patterns in reversed(_PATTERNS) for extension in extensions
}
"""By extension of the file's name."""
