"""What is read from a body of JSON is what stands in it, and can be written again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.json_body import parsed

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(value=VALUES, ascii_only=st.booleans())
def test_json_is_read_as_it_was_written(value: object, ascii_only: bool) -> None:
    assert parsed(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parsed(b"\xef\xbb\xbf{}") == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": "\\ud800"}', "hex escape"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'["\xed\xa0\x80"]', "unicode"),
        (b"[NaN]", "expected value"),
        (b"[-Infinity]", "invalid number"),
        (b"[" * 210 + b"]" * 210, "nested too deep"),
        (b"[" * 100_000, "nested too deep"),
        (b"1" * 5000, "out of range"),
        (b"{", "EOF"),
        (b"secret", "expected value"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_could_not_be_written_again(body: bytes, words: str) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        parsed(body)
    assert words in raised.value.msg
    assert "secret" not in str(raised.value)
