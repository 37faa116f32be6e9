"""What counts as a marker, and an answer without those that were made up, in one piece or in many."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherlock.rag.application.markers import MarkerFilter, markers


def filtered(pieces: list[str], known: set[int]) -> str:
    answer = MarkerFilter(known)
    return "".join([*map(answer.feed, pieces), answer.end()])


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("It is blue [1] and green [7].", "It is blue [1] and green."),
        ("It is blue[7]. It is green.[8]", "It is blue. It is green."),
        ("Both [1, 7] of [7,8] them [2 , 1].", "Both [1] of them [2 , 1]."),
        ("【7】 It is blue【1】.", "It is blue【1】."),
        ("[7] It is.\n[8] It is not.", "It is.\nIt is not."),
        ("Chained [1][7][2].", "Chained [1][2]."),
        ("In MIT[7] and in 1974[8].", "In MIT and in 1974."),
        ("Indices a[7], rows_read[9], x2[7], self.rows[7], readFile[8], m[1][7].",) * 2,
        ("Intervals [0, 1], years [1974], text [n] and [].",) * 2,
        ("See [7](https://a.b/c) and [text][7].\n[7]: https://a.b/c",) * 2,
        ("Call `f([7])` or\n```\n[7]\n\n[8]\n```\nbut [9]", "Call `f([7])` or\n```\n[7]\n\n[8]\n```\nbut"),
        ("A lone ` and [7].\nNext [7]` line", "A lone ` and.\nNext` line"),
        ("Escaped \\[7]",) * 2,
        ("Unfinished [7",) * 2,
        ("Blanks at the end [7]  \n", "Blanks at the end  \n"),
        ("  [7", "  [7"),
        ("", ""),
    ],
)  # fmt: skip
def test_made_up_markers_go_and_nothing_else(answer: str, shown: str) -> None:
    for size in (1, 2, 3, 1000):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert filtered(pieces, {1, 2}) == shown


PIECES = ["[1]", "[7]", "[1,7]", "【7】", "[", "]", "`", "```", "a", "blue", "(", ":", "7", ",", "x_1", "."]
MARKED = st.lists(st.sampled_from([*PIECES, "\n", " ", "  "]), max_size=40)


@settings(deadline=None, max_examples=150)
@given(MARKED, st.integers(1, 7))
def test_however_it_is_cut_the_same_is_shown(pieces: list[str], size: int) -> None:
    answer = "".join(pieces)
    whole = filtered([answer], {1})
    assert filtered(pieces, {1}) == whole
    assert filtered([answer[at : at + size] for at in range(0, len(answer), size)], {1}) == whole


@settings(deadline=None, max_examples=100)
@given(MARKED)
def test_known_markers_and_plain_text_pass_unchanged(pieces: list[str]) -> None:
    answer = "".join(pieces)
    assert filtered(pieces, set(range(100))) == answer
    if not any(markers(answer)):
        assert filtered(pieces, {1}) == answer


def test_text_is_held_back_no_longer_than_it_must() -> None:
    answer = MarkerFilter({1})
    assert [answer.feed(piece) for piece in ("It", " is ", "blue", " [", "1", "]", " [7", "]", ".")] == [
        "It", " is", " blue", "", "", " [1]", "", "", ".",
    ]  # fmt: skip
    assert answer.end() == ""
    blanks = MarkerFilter({1})
    assert len(blanks.feed(" " * 100)) == 40
    assert len(blanks.feed(" " * 100)) == 100


@pytest.mark.parametrize("piece", ["[9]", "[9][8] ", "`[9]", " ", "[", "a[9] ", "```[9]\n"])
@pytest.mark.timeout(30)
def test_long_answers_take_no_longer_each(piece: str) -> None:
    started = time.process_time()
    filtered([piece] * 2_000, {1})
    assert time.process_time() - started < 5
