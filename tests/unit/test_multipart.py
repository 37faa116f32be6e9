"""An upload comes out as it went in, however the wire cuts it up and in whatever order its parts stand."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherlock.multipart import MAX_FIELDS, Upload
from sherlock.rag.domain.errors import InvalidRequest

TYPE = "multipart/form-data; boundary=edge"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    head = (
        f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\nContent-Type: text/plain\r\n\r\n'
    )
    return head.encode() + content + b"\r\n"


async def read(body: bytes, sizes: list[int]) -> tuple[str, bytes, dict[str, str]]:
    async def wire() -> AsyncIterator[bytes]:
        at, turn = 0, 0
        while at < len(body):
            size = sizes[turn % len(sizes)]
            yield body[at : at + size]
            at, turn = at + size, turn + 1

    upload = Upload(wire(), TYPE, file_field="file")
    filename = await upload.begin()
    content = b"".join([piece async for piece in upload.data()])
    return filename, content, dict(await upload.finish())


CONTENTS = st.binary(max_size=300) | st.sampled_from(
    [b"", b"\r\n", b"--edge-", b"\r\n--edg", b"\r\n--edge"[:-1] * 9]
)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None)
@given(
    content=CONTENTS,
    values=st.dictionaries(st.sampled_from(["purpose", "expires_after[seconds]", "x"]), VALUES),
    position=st.integers(0, 3),
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=5),
)
def test_nothing_is_lost(content: bytes, values: dict[str, str], position: int, sizes: list[int]) -> None:
    parts = [part(name, value.encode()) for name, value in values.items()]
    parts.insert(position, part("file", content, "Ünïcode.txt"))
    body = b"".join(parts) + b"--edge--\r\n"
    assert asyncio.run(read(body, sizes)) == ("Ünïcode.txt", content, values)


@pytest.mark.parametrize(
    ("sent", "name"),
    [("a.txt", "a.txt"), ("a%22b%0d%0Ac.txt", 'a"b\r\nc.txt'), ("100%25.txt", "100%25.txt"), (None, "")],
)
async def test_names(sent: str | None, name: str) -> None:
    assert (await read(part("file", b"x", sent) + b"--edge--\r\n", [9]))[0] == name


@pytest.mark.parametrize(
    "body",
    [
        part("file", b"x", "a") + part("file", b"y", "b") + b"--edge--\r\n",
        part("file", b"x", "a") + part("x", b"1") + part("x", b"2") + b"--edge--\r\n",
        part("file", b"x", "a")
        + b"".join(part(f"x{n}", b"") for n in range(MAX_FIELDS + 1))
        + b"--edge--\r\n",
        part("file", b"x", "a") + part("x", b"y" * 5000) + b"--edge--\r\n",
        part("file", b"x", "a") + b"--ed",
        part("purpose", b"batch") + b"--edge--\r\n",
        b"--edge\r\n" + b"X" * 10_000,
        b"nonsense",
    ],
)
async def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        await read(body, [100])
