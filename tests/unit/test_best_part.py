"""What of a long text the cross-encoder reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.application.best_part import PART_CHARS, best_parts

FILLER = "This sentence is about something else altogether. "
ANSWER = "The feed pump stops when the oil valve closes."


@pytest.mark.parametrize("before", [0, 10, 40, 80])
def test_the_part_holds_what_was_asked_for_wherever_it_stands(before: int) -> None:
    text = FILLER * before + ANSWER + " " + FILLER * (80 - before)
    (part,) = best_parts("when does the feed pump stop", [text])
    assert ANSWER in part
    assert len(part) <= PART_CHARS


def test_a_term_that_all_texts_hold_tells_little() -> None:
    common = "The pump is a pump, and the station has one. "
    text = common + FILLER * 40 + "The rotor is made of steel. " + FILLER * 40
    others = [common + FILLER * 40] * 8
    part, *_ = best_parts("pump rotor", [text, *others])
    assert "rotor" in part


def test_nothing_held_gives_the_beginning() -> None:
    (part,) = best_parts("zeppelin", [ANSWER + " " + FILLER * 50])
    assert part.startswith(ANSWER)


def test_text_in_which_no_sentence_ends_is_whole() -> None:
    text = "word " * 1_000
    assert best_parts("word", [text]) == [text.strip()]


def test_other_scripts() -> None:
    text = "今日は天気がいい。" * 200 + "東京都庁は新宿にある。" + "今日は天気がいい。" * 200
    (part,) = best_parts("東京都庁はどこ", [text])
    assert "東京都庁は新宿にある。" in part


@given(st.text(max_size=40), st.lists(st.text(st.sampled_from("ab. \n。é東"), max_size=3_000), max_size=4))
def test_every_part_is_cut_out_of_its_text(question: str, texts: list[str]) -> None:
    parts = best_parts(question, texts)
    assert len(parts) == len(texts)
    for text, part in zip(texts, parts, strict=True):
        assert part in text
        assert part == text or len(text) > PART_CHARS
        assert part or not text.strip()
