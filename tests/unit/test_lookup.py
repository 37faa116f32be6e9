"""Which queries are for a name and not for a meaning, and what the dense score weighs then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.application import lookup


@pytest.mark.parametrize(
    "text",
    [
        "E0A3F-07",
        "KX-4471-Q?",
        "(0x80070057)",
        "ENOENT",
        "NullPointerException",
        "MAX_SIZE",
        "/etc/app.conf",
        "std::vector",
        "ORA-00942, TNS-12541",
        "4711",
        "user@example.org",
        "VT-AAB",
    ],
)
def test_a_name_is_looked_up(text: str) -> None:
    assert lookup.is_lookup(text)
    assert lookup.weight(0.7, [text]) < 0.3


@pytest.mark.parametrize(
    "text",
    [
        "",
        " - ",
        "turbine",
        "Marlowe Turbine",
        "e-mail",
        "what does E0A3F-07 mean",
        "DNA damage",
        "HOW CAN THIS PUMP BE STOPPED",
        "错误0x80",
        "naïve façade",
    ],
)
def test_words_are_not(text: str) -> None:
    assert not lookup.is_lookup(text)
    assert lookup.weight(0.7, [text]) == 0.7


def test_one_phrasing_in_words_is_enough_to_go_by_meaning() -> None:
    assert lookup.weight(0.7, ["ENOENT", "a file that is missing"]) == 0.7


@given(st.lists(st.text(max_size=30), min_size=1, max_size=3), st.floats(0, 1), st.floats(0, 1))
def test_the_weight_grows_with_alpha_and_keeps_its_ends(texts: list[str], one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert 0 <= lookup.weight(low, texts) <= lookup.weight(high, texts) <= 1
    assert lookup.weight(0, texts) == 0
    assert lookup.weight(1, texts) == 1
