"""Passages within a budget, and citations that hold what they are cited for."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherlock.rag.application import ground
from sherlock.rag.domain.models import Candidate, Citation, Passage, Result
from sherlock.rag.tokens import Cl100kCounter

COUNTER = Cl100kCounter()
COUNTER.count("the vocabulary is loaded here, not in the first test")

TURBINE = (
    "The Marlowe turbine was built in 1974. Its emergency shut-off code is KX-4471-Q. "
    "It is inspected every eleven weeks by two engineers."
)
CODE = "Its emergency shut-off code is KX-4471-Q."
GARDEN = "The public garden of Hallorand opens at nine in the morning. Dogs are welcome on a lead."


def result(
    text: str, *, file: str = "a.txt", index: int = 0, start: int = 0, page: int | None = None
) -> Result:
    candidate = Candidate(
        chunk_id=index,
        vector_store_id="vs_1",
        file_id=f"file-{file}",
        filename=file,
        attributes=None,
        chunk_index=index,
        text=text,
        start=start,
        end=start + len(text),
        page=page,
        heading=None,
        cosine=0.5,
        keyword=0.5,
    )
    return Result(candidate, score=0.8, fused=0.8)


def numbered(*texts: str) -> tuple[Passage, ...]:
    return tuple(
        Passage(number, result(text, file=f"{number}.txt", index=number, start=100), text)
        for number, text in enumerate(texts, start=1)
    )


def spans(answer: str, found: tuple[Citation, ...]) -> list[tuple[str, str]]:
    return [(answer[citation.start : citation.end], citation.quote) for citation in found]


TEXTS = st.text(alphabet="ab .!?\n。é[1]`", max_size=80)

# ── passages ────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab .\n", min_size=1, max_size=400), max_size=5), st.integers(0, 200))
def test_passages_fit_and_begin_their_chunks(texts: list[str], budget: int) -> None:
    results = [result(text, index=at) for at, text in enumerate(texts)]
    found = ground.passages(results, COUNTER, budget)
    assert [passage.number for passage in found] == list(range(1, len(found) + 1))
    assert [passage.result for passage in found] == results[: len(found)], "the best ones, in their order"
    assert all(passage.result.candidate.text.startswith(passage.text) for passage in found)
    assert all(passage.text == passage.result.candidate.text for passage in found[:-1]), (
        "only the last is cut"
    )
    shown = "\n\n".join(ground.shown(passage) for passage in found)
    assert COUNTER.count(shown) <= budget + len(found)


def test_a_cut_falls_after_a_sentence() -> None:
    long = "The first sentence is here. " * 30
    (passage,) = ground.passages([result(long)], COUNTER, 100)
    assert passage.text.endswith("here.")
    assert 60 < COUNTER.count(passage.text) < 100
    (words,) = ground.passages([result("word " * 500)], COUNTER, 100)
    assert words.text.endswith("word")
    assert ground.passages([result(long)], COUNTER, 20) == (), "no stumps"


def test_a_long_history_leaves_passages_their_share() -> None:
    history = [{"role": "user", "content": "word " * 5000}]
    assert ground.passage_budget("", history, COUNTER, 1000) == 250
    assert ground.passage_budget("be brief", [{"role": "user", "content": "why?"}], COUNTER, 1000) == 992


# ── messages ────────────────────────────────────────────────────────────────


def test_the_question_is_the_last_user_message() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {
            "role": "user",
            "content": [{"type": "text", "text": " second "}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "content": None},
    ]
    assert ground.question(messages) == "second"
    assert ground.question([{"role": "system", "content": "x"}]) == ""


def test_passages_stand_before_the_conversation_in_one_system_message() -> None:
    messages = [{"role": "system", "content": "Speak Latin."}, {"role": "user", "content": "When?"}]
    (system, user) = ground.grounded_messages("Cite.", numbered(TURBINE), messages)
    assert user == messages[1]
    assert system["role"] == "system"
    parts = [system["content"].index(part) for part in ("Cite.", "[1] 1.txt", TURBINE, "Speak Latin.")]
    assert parts == sorted(parts)
    (nothing, _) = ground.grounded_messages("Cite.", (), messages[1:])
    assert ground.NOTHING_FOUND in nothing["content"]


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])


@settings(deadline=None)
@given(st.lists(st.tuples(ROLES, st.text(alphabet="ab ", max_size=60)), max_size=12), st.integers(0, 120))
def test_trimming_drops_whole_turns_from_the_oldest(drawn: list[tuple[str, str]], budget: int) -> None:
    messages = [{"role": role, "content": f"{at} {text}"} for at, (role, text) in enumerate(drawn)]
    kept = ground.trimmed(messages, COUNTER, budget)
    assert [m for m in messages if m in kept] == kept, "in order"
    assert [m for m in messages if m["role"] in ("system", "developer") and m not in kept] == []
    last_user = next((m for m in reversed(messages) if m["role"] == "user"), None)
    assert last_user is None or last_user in kept
    gone = [at for at, m in enumerate(messages) if m not in kept]
    for at in gone:
        follows = next(
            (n for n in range(at + 1, len(messages)) if messages[n]["role"] not in ("system", "developer")),
            at,
        )
        assert messages[follows]["role"] == "user" or follows in gone, (
            "no answer is left without its question"
        )
    if ground.prompt_tokens(messages, COUNTER) <= budget:
        assert kept == messages


# ── citations ───────────────────────────────────────────────────────────────


def test_a_marker_cites_the_sentence_that_supports_it() -> None:
    answer = "The code is KX-4471-Q [1]. The garden opens at nine.[2] Engineers look every eleven weeks [1]."
    found = ground.citations(answer, numbered(TURBINE, GARDEN))
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
    assert [text for text, _ in spans(answer, ground.citations(answer, numbered(TURBINE, GARDEN)))] == marked


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
    found = ground.citations(answer, numbered(TURBINE, GARDEN))
    assert [(citation.file_id, citation.quote) for citation in found] == cited


def test_a_statement_may_rest_on_neighbouring_sentences() -> None:
    answer = "The Marlowe turbine of 1974 has the emergency shut-off code KX-4471-Q."
    ((_, quote),) = spans(answer, ground.citations(answer, numbered(GARDEN, TURBINE)))
    assert quote == TURBINE.partition(" It is")[0]


@settings(deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_quotes_are_exact_and_spans_lie_in_the_answer(answer: str, texts: list[str]) -> None:
    found = numbered(*texts)
    for citation in ground.citations(answer, found):
        assert 0 <= citation.start < citation.end <= len(answer)
        text = texts[citation.chunk_index - 1]
        assert citation.quote
        assert text[citation.quote_start - 100 :].startswith(citation.quote)


@settings(deadline=None)
@given(TEXTS)
def test_sentences_hold_every_character_that_is_not_blank(text: str) -> None:
    found = ground.sentences(text)
    assert "".join("".join(text[s.start : s.end].split()) for s in found) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(found))
