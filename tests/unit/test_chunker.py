"""Laws of the chunker over any text, and where its cuts fall."""

import itertools
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from sherlock.rag import chunker
from sherlock.rag.chunker import chunk
from sherlock.rag.document_text import document_text
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, Section
from sherlock.rag.parsers import parse
from sherlock.rag.tokens import Cl100kCounter

COUNTER = Cl100kCounter()

SCRIPTS = st.text(
    st.sampled_from(
        "ab Zz09.,!?'\"()\n\n\r\t\f—…éüßđ‍️漢字。，かな한국ไทยमु́العربية🙂🏳🌈👩👧ⅷ\u00a0\u200b\u2028𐌲"
    ),
    max_size=600,
)
WORDS = st.lists(
    st.sampled_from(
        ["the", "pump", "Ventil.", "end?", "a", "12345", "x" * 90, "漢字" * 40, "\n", "\n\n", " ", "  "]
    ),
    max_size=400,
).map(" ".join)
TEXTS = st.one_of(SCRIPTS, WORDS, st.text(max_size=300))
SECTIONS = st.lists(
    st.builds(
        Section,
        text=TEXTS,
        page=st.one_of(st.none(), st.integers(1, 9)),
        heading=st.sampled_from([None, "One", "One > Two"]),
        records=st.booleans(),
    ),
    max_size=5,
)
STRATEGIES = st.integers(64, 200).flatmap(
    lambda size: st.builds(ChunkingStrategy, st.just(size), st.integers(0, size // 2))
)


def chunks_of(text: str, size: int = 100, overlap: int = 0) -> list[Chunk]:
    return [*chunk([Section(text)], ChunkingStrategy(size, overlap), COUNTER)]


# ── laws ────────────────────────────────────────────────────────────────────


@given(SECTIONS, STRATEGIES)
@settings(max_examples=60, deadline=None)
def test_laws(sections: Sequence[Section], strategy: ChunkingStrategy):
    document = "".join(section.text for section in sections)
    chunks = [*chunk(sections, strategy, COUNTER)]
    covered = set[int]()
    for number, made in enumerate(chunks):
        assert made.index == number
        assert made.text == document[made.start : made.end]
        assert made.text == made.text.strip() != ""
        assert COUNTER.count(made.text) <= strategy.max_chunk_size_tokens
        section = section_at(sections, made.start)
        assert (made.page, made.heading) == (section.page, section.heading)
        pages = [section_at(sections, at).page for at in range(made.start, made.end)]
        assert [page_at(made, at) for at in range(made.start, made.end) if not document[at].isspace()] == [
            page for page, character in zip(pages, made.text, strict=True) if not character.isspace()
        ]
        covered |= {*range(made.start, made.end)}
    assert all(character.isspace() for at, character in enumerate(document) if at not in covered)
    for one, other in itertools.pairwise(chunks):
        assert one.start < other.start
        assert one.end < other.end
        assert COUNTER.count(document[other.start : one.end]) <= strategy.chunk_overlap_tokens


def page_at(made: Chunk, offset: int) -> int | None:
    return next((page for start, page in reversed(made.page_breaks) if start <= offset), made.page)


@given(SECTIONS, STRATEGIES)
@settings(max_examples=60, deadline=None)
def test_chunks_rejoin_to_the_document(sections: Sequence[Section], strategy: ChunkingStrategy):
    document = "".join(section.text for section in sections)
    rejoined = document_text(chunk(sections, strategy, COUNTER))
    assert rejoined == document[: len(rejoined)]
    assert document[len(rejoined) :].strip() == ""


def test_offsets_hold_also_behind_more_blanks_than_are_kept():
    text = "One." + "\n \t" * 5_000 + "Two.\r\n\r\n" + "Three. " * 200
    made = chunks_of(text)
    assert all(document_text(made)[one.start : one.end] == one.text for one in made)


def test_chunks_without_known_gaps_rejoin_with_line_ends():
    """As they were stored before gaps were."""
    made = [replace(one, gap="") for one in chunks_of("  One. \t\n\n" + "Two and more. " * 100)]
    assert document_text(made).startswith("\n\nOne.")
    assert all(document_text(made)[one.start : one.end] == one.text for one in made)


RECORDS = st.lists(
    st.lists(st.sampled_from(["valve", "7714", "4.2 bar", "漢字", "a;", "Ventil."]), min_size=1, max_size=18),
    min_size=1,
    max_size=60,
)


@given(RECORDS, STRATEGIES)
@settings(max_examples=60, deadline=None)
def test_records_that_fit_are_never_cut(records: list[list[str]], strategy: ChunkingStrategy):
    lines = [f"{number}: {' '.join(words)}\n" for number, words in enumerate(records)]
    made = [*chunk([Section("".join(lines), records=True)], strategy, COUNTER)]
    for line in lines:
        if sum(COUNTER.count(f" {word}") for word in line.split()) + 1 <= strategy.max_chunk_size_tokens:
            assert any(line.strip() in part.text for part in made)
    starts = {*itertools.accumulate(map(len, lines), initial=0)}
    longest = max(sum(COUNTER.count(f" {word}") for word in line.split()) for line in lines)
    if longest < strategy.max_chunk_size_tokens:
        assert {part.start for part in made} <= starts
        assert {part.end + 1 for part in made} <= starts


def fits(text: str, size: int) -> bool:
    """Whether a chunk can hold it, counted as generously as the chunker does."""
    gaps_and_words = regex.findall(r"\s+|\S+", text.strip())
    return sum(map(COUNTER.count, gaps_and_words)) <= size


LINES = st.lists(
    st.sampled_from(
        ["    value = 4.2", "", "    if valve.closes():", "        stop('feed pump')", "    # no"]
    ),
    max_size=40,
)


@given(st.lists(LINES, min_size=1, max_size=12), STRATEGIES)
@settings(max_examples=60, deadline=None)
def test_symbols_that_fit_are_never_cut(bodies: list[list[str]], strategy: ChunkingStrategy):
    symbols = [
        Section(
            f"def f{number}():\n" + "\n".join([*body, "    return\n\n"]), heading=f"f{number}", whole=True
        )
        for number, body in enumerate(bodies)
    ]
    made = [*chunk(symbols, strategy, COUNTER)]
    for symbol in symbols:
        if fits(symbol.text, strategy.max_chunk_size_tokens):
            assert any(symbol.text.strip() in part.text for part in made)


@pytest.mark.parametrize("size", [128, 256, 512])
def test_functions_of_real_source_stay_whole(size: int):
    kept = 0
    sources = [path for path in Path(chunker.__file__).parent.rglob("*.py") if path.stat().st_size]
    for path in sources:
        sections = [*parse(path, path.name)]
        made = [*chunk(sections, ChunkingStrategy(size, size // 10), COUNTER)]
        for section in sections:
            if section.whole and fits(section.text, size):
                kept += 1
                assert any(section.text.strip() in part.text for part in made), (path.name, section.heading)
    assert kept > 500


GRAPHEMES = st.lists(
    st.sampled_from(["漢", "ก็", "é", "e\u0301", "👩‍👩‍👧", "🇩🇪", "각", "नि", "a", "。", " ", "\n"]),
    max_size=250,
)


@given(GRAPHEMES, STRATEGIES)
@settings(max_examples=40, deadline=None)
def test_graphemes_are_never_cut(graphemes: list[str], strategy: ChunkingStrategy):
    document = "".join(graphemes)
    ends = {*itertools.accumulate((len(one) for one in regex.findall(r"\X", document)), initial=0)}
    for made in chunk([Section(document)], strategy, COUNTER):
        assert {made.start, made.end} <= ends


def section_at(sections: Sequence[Section], offset: int) -> Section:
    end = 0
    for section in sections:
        end += len(section.text)
        if offset < end:
            return section
    raise AssertionError("the offset lies beyond the document")


@given(TEXTS, st.data())
@settings(max_examples=50, deadline=None)
def test_where_sections_end_between_words_does_not_matter(text: str, data: st.DataObject):
    blanks = [at for at, character in enumerate(text) if character == " "]
    at = data.draw(st.sampled_from(blanks)) if blanks else 0
    strategy = ChunkingStrategy(64, 10)
    split = chunk([Section(text[:at]), Section(text[at:])], strategy, COUNTER)
    assert [*split] == [*chunk([Section(text)], strategy, COUNTER)]


def test_same_document_same_chunks():
    text = "Water is pumped. " * 500
    assert chunks_of(text, overlap=30) == chunks_of(text, overlap=30)


# ── where cuts fall ─────────────────────────────────────────────────────────


def test_a_short_text_is_one_chunk():
    assert chunks_of("  One line.\n") == [Chunk(index=0, text="One line.", start=2, end=11, gap="  ")]


@pytest.mark.parametrize("text", ["", " ", "\n\t\u00a0\u2003\x1f" * 900])
def test_blank_text_has_no_chunk(text: str):
    assert chunks_of(text) == []


def test_paragraphs_stay_whole():
    paragraphs = [f"Paragraph {number}. " + "It says this and that. " * 8 for number in range(20)]
    chunks = chunks_of("\n\n".join(paragraphs))
    assert all(made.text.startswith("Paragraph") for made in chunks)
    assert len(chunks) == 20


def test_lines_stay_whole():
    lines = [f"value_{number} = compute({number}, {number + 1})" for number in range(200)]
    assert all(line in lines for made in chunks_of("\n".join(lines)) for line in made.text.split("\n"))


@pytest.mark.parametrize(
    ("sentence", "between"),
    [
        ("The valve opens when the pressure is high.", " "),
        ("Is it “open” now (or not)?", " "),
        ("阀门在压力过高时打开。", ""),
        ("वाल्व दबाव अधिक होने पर खुलता है।", " "),
    ],
)
def test_sentences_stay_whole(sentence: str, between: str):
    chunks = chunks_of(between.join([sentence] * 60))
    assert len(chunks) > 1
    assert all(made.text.startswith(sentence) and made.text.endswith(sentence) for made in chunks)


def test_words_stay_whole():
    words = {f"word{number}" for number in range(100)}
    assert {word for made in chunks_of(" ".join(sorted(words))) for word in made.text.split()} == words


def test_letters_stay_with_their_marks():
    family = "👩‍👩‍👧"
    chunks = chunks_of(family * 200)
    assert len(chunks) > 1
    assert all(made.text == family * (len(made.text) // len(family)) for made in chunks)


@pytest.mark.timeout(60)
def test_a_run_of_flags_takes_no_longer_than_other_text():
    """Whether two letters make a flag depends on all letters of that kind before them."""
    chunks = chunks_of("🇩🇪" * 100_000, size=1_000)
    assert all(len(made.text) % 2 == 0 for made in chunks)
    assert sum(len(made.text) for made in chunks) == 200_000


def test_chunks_are_at_least_half_full_but_for_the_last():
    text = "".join(f"Sentence number {n} is here. " + "\n\n" * (n % 3 == 0) for n in range(900))
    sizes = [COUNTER.count(made.text) for made in chunks_of(text, 200)]
    assert min(sizes[:-1]) >= 95


def test_a_heading_begins_a_chunk_and_shares_nothing():
    one = Section("One\n\n" + "All about one. " * 35, heading="One")
    two = Section("\n\nTwo\n\n" + "All about two. " * 35, heading="Two")
    chunks = [*chunk([one, two], ChunkingStrategy(200, 50), COUNTER)]
    assert [made.heading for made in chunks] == ["One", "Two"]
    assert chunks[1].text.startswith("Two\n\nAll about two.")


def test_neighbours_share_whole_sentences():
    text = " ".join(f"This is the sentence with the number {number}." for number in range(80))
    chunks = chunks_of(text, 100, 30)
    for one, other in itertools.pairwise(chunks):
        shared = text[other.start : one.end]
        assert shared.startswith("This is")
        assert shared.endswith(".")
        assert COUNTER.count(shared) > 10


def test_pages_are_those_of_the_start():
    pages = [Section(f"Text of page {n}. " * 12 + "\n\n", page=n) for n in range(1, 30)]
    chunks = [*chunk(pages, ChunkingStrategy(100, 0), COUNTER)]
    assert all(made.text.find(f"page {made.page}.") >= 0 for made in chunks)
    assert {made.page for made in chunks} == {*range(1, 30)}


def test_special_tokens_are_text():
    text = "<|endoftext|> " * 300
    chunks = chunks_of(text)
    assert "".join(made.text.replace(" ", "") for made in chunks) == text.replace(" ", "")
    assert COUNTER.count("<|endoftext|>") > 1


# ── time and memory ─────────────────────────────────────────────────────────


def test_an_endless_document_is_chunked_as_it_comes():
    def endless() -> Iterator[Section]:
        for number in itertools.count():
            yield Section(f"Record {number} of a log that never ends, with blanks{' ' * 3_000}\n")

    tracemalloc.start()
    try:
        made = chunk(endless(), ChunkingStrategy(512, 50), COUNTER)
        for _ in itertools.islice(made, 200):
            pass
        before = tracemalloc.get_traced_memory()[0]
        for _ in itertools.islice(made, 600):
            pass
        assert tracemalloc.get_traced_memory()[0] - before < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    ["word and word. ", "x", "漢", " ", "\u0301", "=", " " * 1_500 + "x"],
    ids=repr,
)
def test_time_is_linear(text: str):
    def seconds(size: int) -> float:
        source = text * (size // len(text))
        begun = time.process_time()
        chunks_of(source, 512, 50)
        return time.process_time() - begun

    seconds(1_000)
    small, large = seconds(25_000), seconds(200_000)
    assert large < 8 * small * 3 + 0.2
