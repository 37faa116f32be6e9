"""Citations that hold what they are cited for."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cited import CODE, GARDEN, TURBINE, numbered

from sherlock.rag.application.cite import citations
from sherlock.rag.application.sentences import sentences
from sherlock.rag.domain.models import Citation


def spans(answer: str, found: tuple[Citation, ...]) -> list[tuple[str, str]]:
    return [(answer[citation.start : citation.end], citation.quote) for citation in found]


TEXTS = st.text(alphabet="ab .!?\n。é[1]`", max_size=80)


def test_a_marker_cites_the_sentence_that_supports_it() -> None:
    answer = "The code is KX-4471-Q [1]. The garden opens at nine.[2] Engineers look every eleven weeks [1]."
    found = citations(answer, numbered(TURBINE, GARDEN))
    assert spans(answer, found) == [
        ("[1]", "Its emergency shut-off code is KX-4471-Q."),
        ("[2]", "The public garden of Hallorand opens at nine in the morning."),
        ("[1]", "It is inspected every eleven weeks by two engineers."),
    ]
    first = found[0]
    assert (first.file_id, first.chunk_index, first.vector_store_id) == ("file-1.txt", 1, "vs_1")
    assert TURBINE[first.quote_start - 100 :].startswith(first.quote)


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        ("Both say so [1, 2].", ["[1, 2]", "[1, 2]"]),
        ("Both say so [1][2].", ["[1]", "[2]"]),
        ("They say so【2】.", ["【2】"]),
        ("It was said. [1]\nAnd more.", ["[1]"]),
        ("The same twice [1, 1].", ["[1, 1]"]),
        ("Out of range [7], and right [1].", ["[1]"]),
        ("Not in code: `a[1]` and\n```\nb[2]\n```\nbut here [2].", ["[2]"]),
    ],
)
def test_what_counts_as_a_marker(answer: str, marked: list[str]) -> None:
    assert [text for text, _ in spans(answer, citations(answer, numbered(TURBINE, GARDEN)))] == marked


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("The emergency shut-off code is KX-4471-Q.", [("file-1.txt", CODE)]),
        ("KX-4471-Q", [("file-1.txt", CODE)]),
        ("The emergency shut-off code is KX-9999-Q.", []),
        ("The turbine was built in 1975.", []),
        ("The moon is made of green cheese.", []),
        ("The turbine sings beautifully in winter nights.", []),
        ("The garden opens at nine in the morning [9].", [
            ("file-2.txt", "The public garden of Hallorand opens at nine in the morning.")]),
        ("I do not know.", []),
        ("", []),
    ],
)  # fmt: skip
def test_without_markers_only_what_a_quote_holds_is_cited(answer: str, cited: list[tuple[str, str]]) -> None:
    found = citations(answer, numbered(TURBINE, GARDEN))
    assert [(citation.file_id, citation.quote) for citation in found] == cited


def test_a_statement_may_rest_on_neighbouring_sentences() -> None:
    answer = "The Marlowe turbine of 1974 has the emergency shut-off code KX-4471-Q."
    ((_, quote),) = spans(answer, citations(answer, numbered(GARDEN, TURBINE)))
    assert quote == TURBINE.partition(" It is")[0]


@settings(deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_quotes_are_exact_and_spans_lie_in_the_answer(answer: str, texts: list[str]) -> None:
    found = numbered(*texts)
    for citation in citations(answer, found):
        assert 0 <= citation.start < citation.end <= len(answer)
        text = texts[citation.chunk_index - 1]
        assert citation.quote
        assert text[citation.quote_start - 100 :].startswith(citation.quote)


@settings(deadline=None)
@given(TEXTS)
def test_sentences_hold_every_character_that_is_not_blank(text: str) -> None:
    found = sentences(text)
    assert "".join("".join(text[s.start : s.end].split()) for s in found) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(found))


@pytest.mark.parametrize("run", [".", "!?", "…", '."', ".)", "。", "\n", "\n a"])
def test_long_runs_of_stops_are_taken_at_once(run: str) -> None:
    """In the square of their length these would take longer than any test may."""
    text = f"It is blue {run * 100_000}x"
    found = sentences(text)
    assert text[found[0].start :].startswith("It is blue")
    assert found[-1].end == len(text)
