"""Whether what was found bears on the question, and messages that no file has to answer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cited import result

from sherlock.rag.application.relevance import FEW_WORDS, any_relevant
from sherlock.rag.application.small_talk import MOST_CHARS, is_small_talk
from sherlock.rag.domain.models import Result


def found(cosine: float, keyword: float) -> Result:
    one = result("It is the mouse that weighs six grams.")
    return replace(one, candidate=replace(one.candidate, cosine=cosine, keyword=keyword))


@pytest.mark.parametrize(
    ("cosine", "keyword", "relevant"),
    [
        (0.196, 0.368, True),  # "Until when must holidays be asked for?", and the page that says so
        (0.157, 0.547, True),  # "Who is called when nobody confirms a red alarm?"
        (0.336, 0.187, True),
        (0.254, 0.124, False),  # a question about wings, to manuals
        (0.252, 0.101, False),  # "When does the next train to Hamburg leave?"
        (0.0, 0.0, False),
    ],
)
def test_both_scores_decide(cosine: float, keyword: float, relevant: bool) -> None:
    nothing = found(0.1, 0.0)
    assert any_relevant("How heavy is the moon?", [nothing, found(cosine, keyword)], dense=True) is relevant


def test_without_vectors_keywords_decide() -> None:
    assert any_relevant("How heavy is the moon?", [found(0.0, 0.2)], dense=False)
    assert not any_relevant("How heavy is the moon?", [found(0.0, 0.05)], dense=False)


@pytest.mark.parametrize(
    "question",
    [
        "Summarise this.",
        "What are the files about?",
        "Fasse das Dokument zusammen.",
        "Résume le texte.",
        "TL;DR",
    ],
)
def test_what_is_asked_of_the_files_as_such_takes_what_there_is(question: str) -> None:
    assert any_relevant(question, [found(0.0, 0.0)], dense=True)
    assert not any_relevant(question, [], dense=True)


@pytest.mark.parametrize("question", ["Wie schwer ist die Maus?", "Combien pèse la souris ?", "老鼠有多重？"])
def test_a_question_in_another_language_is_not_judged_by_scores(question: str) -> None:
    assert any_relevant(question, [found(0.1, 0.0)], dense=True)


def test_a_long_text_that_shares_one_word_with_a_question_is_in_another_language() -> None:
    text = " ".join(f"wort{'abcdefghij'[n // 10]}{'abcdefghij'[n % 10]}" for n in range(FEW_WORDS))
    one = found(0.1, 0.0)
    far = replace(one, candidate=replace(one.candidate, text=f"The {text}"))
    assert any_relevant("How heavy is the moon?", [far], dense=True)


def test_a_greeting_is_not_one_in_another_language() -> None:
    assert not any_relevant("Bonjour, ça va ?", [found(0.1, 0.0)], dense=True)


SCORES = st.floats(0, 1)


@given(st.lists(st.tuples(SCORES, SCORES), max_size=4), SCORES, SCORES, st.booleans())
def test_finding_more_never_makes_it_irrelevant(
    scores: list[tuple[float, float]], cosine: float, keyword: float, dense: bool
) -> None:
    some = [found(*pair) for pair in scores]
    if any_relevant("How heavy is the moon?", some, dense=dense):
        assert any_relevant("How heavy is the moon?", [*some, found(cosine, keyword)], dense=dense)
        assert any_relevant(
            "How heavy is the moon?", [found(min(1, c + 0.1), k) for c, k in scores], dense=dense
        )


# ── small talk ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "hello, how are you?",
        "Good morning!",
        "Thanks a lot :)",
        "How’s it going today?",
        "Guten Tag, wie geht es Ihnen?",
        "Bonjour, ça va ?",
        "¡Hola! ¿Qué tal?",
        "  Thank  you\nvery much. Bye! ",
    ],
)
def test_greetings_are_small_talk(text: str) -> None:
    assert is_small_talk(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?!",
        "Hello, when was the plant rebuilt?",
        "How are you cooled?",
        "Why?",
        "High",
        "Say hello in French",
        "hello " * MOST_CHARS,
    ],
)
def test_questions_are_not(text: str) -> None:
    assert not is_small_talk(text)
