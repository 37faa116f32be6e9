"""What is read from a body of JSON is what stands in it, and can be written again."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock import json_body
from sherlock.json_body import check_values, parsed
from sherlock.process import cancelled

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


def separators(value: object) -> int:
    """Commas and opening brackets of the value, written as JSON."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return max(len(value), 1) + sum(map(separators, inner))
    return 0


@given(value=VALUES, limit=st.integers(0, 8), ascii_only=st.booleans())
async def test_values_are_counted_outside_of_strings(value: object, limit: int, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_body, "MAX_VALUES", limit)
        if separators(value) <= limit:
            await check_values(body)
        else:
            with pytest.raises(json.JSONDecodeError, match="too many values"):
                await check_values(body)


@pytest.mark.parametrize("body", [b'"' + b"a,[{" * 9, b'"\\', b"\x00" * 9, b'"\\\\",' * 9])
async def test_any_bytes_can_be_counted(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "MAX_VALUES", 9)
    await check_values(body)


async def test_others_have_their_turn_while_values_are_counted() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    with pytest.raises(json.JSONDecodeError):
        await check_values(b"[" + b"1," * 5_000_000 + b"1]")
    await cancelled(running)
    assert turns >= 50
