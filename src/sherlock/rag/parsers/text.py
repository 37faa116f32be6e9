"""Plain text, Markdown, reStructuredText and source code, in whatever encoding they were written."""

import codecs
import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Final, TextIO

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers.charsets import legacy_encoding, utf16_without_mark

# What people keep in text files; any other file that holds text is read too.
_NAMES: Final = """
    txt text log asc adoc asciidoc org tex bib srt vtt po py pyi pyx js mjs cjs jsx ts mts cts tsx vue
    svelte go rs c h cc cpp cxx hh hpp cs java kt kts scala groovy clj cljs swift m mm rb php pl pm lua r jl
    dart ex exs erl hrl hs ml mli fs fsx vb pas f f90 asm s zig nim sol sh bash zsh fish ps1 bat cmd awk sed
    sql graphql proto thrift css scss sass less xsd xsl svg yaml yml toml ini cfg conf env properties tf
    hcl nix cmake mk gradle dockerfile makefile diff patch
"""
EXTENSIONS: Final = frozenset(f".{name}" for name in _NAMES.split())

BLOCK_CHARS: Final = 1 << 16
"""About how much text a section of a long file holds."""

_SAMPLE_BYTES: Final = 1 << 15
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16, so it is tried first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS: Final = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))


def parse(path: Path) -> Iterator[Section]:
    """The text in blocks of whole lines."""
    with open_text(path) as file:
        yield decoded_from(file)
        while block := file.read(BLOCK_CHARS):
            yield Section(block + file.readline(BLOCK_CHARS))


def parse_markdown(path: Path) -> Iterator[Section]:
    """A section for each heading, as it is written; `#` in code and front matter are no headings."""
    with open_text(path) as file:
        yield decoded_from(file)
        yield from markdown_sections(lines(file))


def markdown_sections(source: Iterable[str]) -> Iterator[Section]:
    """As `parse_markdown`, of lines that are decoded already."""
    return _under_headings(source, _markdown_level())


def parse_rst(path: Path) -> Iterator[Section]:
    """A section for each title; as in docutils, the first adornment seen is the highest level."""
    with open_text(path) as file:
        yield decoded_from(file)
        yield from _under_headings(lines(file), _rst_level())


def is_text(sample: bytes) -> bool:
    """Whether the first bytes of a file look like text; the sample may end within a character."""
    return by_mark(sample) is not None or not _is_binary(sample)


def open_text(path: Path, declared: str | None = None) -> TextIO:
    """The file decoded, line ends as `\\n`. Raises `InvalidFile` when what it holds is not text.

    `declared` is the encoding the file claims; it is heard only where the bytes leave room for it.
    """
    return path.open(encoding=_encoding(path, declared), errors="replace")


def decoded_from(file: TextIO) -> Section:
    """What the sections of a file begin with that `open_text` opened: no text, but its encoding."""
    return Section("", encoding=codecs.lookup(file.encoding).name)


def decode(content: bytes) -> str:
    """Text that lies within another file, decoded as `open_text` does; what is not text is blank."""
    return decode_declared(content, None)[0]


def decode_declared(content: bytes, declared: str | None) -> tuple[str, str | None]:
    """As `decode`, with the encoding; what is declared counts where the bytes decode by it."""
    if declared:
        try:
            return content.decode(declared), codecs.lookup(declared).name
        except (LookupError, ValueError):  # unknown, no encoding of text, or not the one it is in
            pass
    try:
        encoding = _encoding_of(io.BytesIO(content), None)
    except InvalidFile:
        return "", None
    return content.decode(encoding, "replace"), codecs.lookup(encoding).name


def lines(file: TextIO, longest: int = BLOCK_CHARS) -> Iterator[str]:
    """The lines of a file; one of more than `longest` characters comes in pieces."""
    while line := file.readline(longest):
        yield line


class Record(str):
    """A line that is a record of a table, to be kept in one piece; see `Section.records`."""

    __slots__ = ()


def gather(pieces: Iterable[str], heading: str | None = None, *, records: bool = False) -> Iterator[Section]:
    """Small pieces joined to sections of about `BLOCK_CHARS`; records are in sections of their own."""
    for are_records, run in groupby(pieces, lambda piece: records or isinstance(piece, Record)):
        yield from _gathered(run, heading, are_records)


def _gathered(pieces: Iterable[str], heading: str | None, records: bool) -> Iterator[Section]:
    block, size = io.StringIO(), 0
    for piece in pieces:
        size += block.write(piece)
        if size >= BLOCK_CHARS:
            yield Section(block.getvalue(), heading=heading, records=records)
            block, size = io.StringIO(), 0
    if size:
        yield Section(block.getvalue(), heading=heading, records=records)


# ── encodings ───────────────────────────────────────────────────────────────


def _encoding(path: Path, declared: str | None = None) -> str:
    with path.open("rb") as file:
        return _encoding_of(file, declared)


def _encoding_of(file: io.BufferedIOBase, declared: str | None) -> str:
    sample = file.read(_SAMPLE_BYTES)
    if marked := by_mark(sample):
        return marked
    if _is_binary(sample):
        raise InvalidFile("The file does not contain readable text.")
    file.seek(0)
    if _has_japanese_escapes(file):
        return "iso2022_jp"
    file.seek(0)
    if _is_utf8(file):
        return "utf-8"
    file.seek(0)
    return _declared_or_likely(_telling_lines(file), declared)


def by_mark(sample: bytes) -> str | None:
    """Unicode encodings by their byte order mark, those of two and four bytes also by where zeros stand."""
    for bom, encoding in _BOMS:
        if sample.startswith(bom):
            return encoding
    units = sample[: len(sample) // 4 * 4]
    likely = _by_zeros(units)
    if likely and sum(map(_is_control, units.decode(likely, "ignore"))) <= len(units) * 0.02:
        return likely
    return utf16_without_mark(sample) if _is_binary(sample) else None


def _by_zeros(units: bytes) -> str | None:
    """By which bytes of four are mostly zero, as they are in scripts with less than 256 letters."""
    match [units[at::4].count(0) * 4 > len(units) * 0.7 for at in range(4)]:
        case [False, _, True, True]:
            return "utf-32-le"
        case [True, True, _, False]:
            return "utf-32-be"
        case [False, True, False, True]:
            return "utf-16-le"
        case [True, False, True, False]:
            return "utf-16-be"
    return None


def _is_control(character: str) -> bool:
    return character < " " and not character.isspace()


def _is_binary(sample: bytes) -> bool:
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    # A stray NUL is dropped later, so text that is sound otherwise may hold some.
    return controls > len(sample) * (0.3 if _is_utf8(io.BytesIO(sample), final=False) else 0.02)


def _is_utf8(file: io.BufferedIOBase, *, final: bool = True) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while block := file.read(1 << 20):
            decoder.decode(block)
        decoder.decode(b"", final)
    except UnicodeDecodeError:
        return False
    return True


def _has_japanese_escapes(file: io.BufferedIOBase) -> bool:
    """Whether all is ASCII and the signs of ISO-2022-JP for kanji are in it."""
    found = False
    while line := file.readline(_SAMPLE_BYTES):
        if not line.isascii():
            return False
        found = found or b"\x1b$B" in line or b"\x1b$@" in line
    return found


def _telling_lines(file: io.BufferedIOBase) -> bytes:
    """Lines with bytes beyond ASCII, which alone tell encodings apart, from all over the file."""
    kept: list[bytes] = []
    size, seen, step = 0, 0, 1
    while line := file.readline(_SAMPLE_BYTES):
        if line.isascii():
            continue
        seen += 1
        if seen % step == 0:
            kept.append(line)
            size += len(line)
        if size > _SAMPLE_BYTES and len(kept) > 1:
            kept, step = kept[::2], step * 2
            size = sum(map(len, kept))
    return b"".join(kept)


def _declared_or_likely(sample: bytes, declared: str | None) -> str:
    if declared and declared != "utf-8":
        with contextlib.suppress(UnicodeDecodeError):
            sample.decode(declared)
            return declared
    damaged = sample.decode("utf-8", "replace")
    beyond_ascii = sum(not character.isascii() for character in damaged)
    if damaged.count("\ufffd") * 10 < beyond_ascii:
        return "utf-8"  # with some broken characters
    return legacy_encoding(sample)


# ── headings ────────────────────────────────────────────────────────────────

_Level = Callable[[str, str], tuple[int, str] | None]
"""`(line, next line)` -> the heading's level and words, if the line is one."""

_ATX = re.compile(r" {0,3}(#{1,6})[ \t](.*)")
_SETEXT = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*$")


def _under_headings(source: Iterable[str], level_of: _Level) -> Iterator[Section]:
    open_headings: list[tuple[int, str]] = []
    block: list[str] = []
    size = 0

    def section() -> Iterator[Section]:
        nonlocal size
        yield from gather(block, " > ".join(words for _, words in open_headings) or None)
        block.clear()
        size = 0

    for line, following in pairwise(chain(source, [""])):
        if found := level_of(line.rstrip("\n"), following.rstrip("\n")):
            yield from section()
            open_headings = [kept for kept in open_headings if kept[0] < found[0]] + [found]
        block.append(line)
        size += len(line)
        if size >= BLOCK_CHARS:
            yield from section()
    yield from section()


def _markdown_level() -> _Level:
    fence: str | None = None
    first = True

    def level(line: str, following: str) -> tuple[int, str] | None:
        nonlocal fence, first
        begins, first = first, False
        if fence:
            if line.strip().startswith(fence) and not line.strip(f"{fence[0]} \t"):
                fence = None
            return None
        if begins and line.rstrip() == "---":
            fence = "---"  # front matter
            return None
        if opening := _FENCE.match(line):
            fence = opening[1]
            return None
        if (atx := _ATX.match(line)) and (words := atx[2].strip(" \t").rstrip("#").strip(" \t")):
            return len(atx[1]), words
        if line.strip() and line[0] not in " \t#>|-+*=" and (underline := _SETEXT.match(following)):
            return (1 if underline[1][0] == "=" else 2), line.strip()
        return None

    return level


def _rst_level() -> _Level:
    order: list[str] = []

    def level(line: str, following: str) -> tuple[int, str] | None:
        title = line.strip()
        underline = _ADORNMENT.match(following)
        if (
            not title
            or not underline
            or _ADORNMENT.match(line)
            or len(following.rstrip()) < max(3, len(title))
        ):
            return None
        if underline[1] not in order:
            order.append(underline[1])
        return order.index(underline[1]) + 1, title

    return level
