"""What goes over the pipe comes out as it went in; anything else is garbled, never believed."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.domain.errors import IngestError, InvalidFile, SherlockError, Unavailable, UnsupportedFile
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes
from sherlock.rag.reading import messages
from sherlock.rag.reading.messages import Batch, End, Failure, Garbled, OutOfMemory, Read, Ready

numbers = st.integers(0, 2**40)
texts = st.text(st.characters(exclude_categories=["Cs"]))
pages = st.none() | numbers
chunks = st.builds(
    Chunk, numbers, texts, numbers, numbers, page=pages, heading=st.none() | texts,
    gap=st.text(" \n\t"), page_breaks=st.lists(st.tuples(numbers, pages), max_size=3).map(tuple),
)  # fmt: skip


def body_of(packed: bytes) -> bytes:
    body = messages.receive(io.BytesIO(packed))
    assert body is not None
    assert len(body) == messages.body_length(packed[: messages.HEADER.size])
    return body


notes = st.builds(
    ReadingNotes,
    st.sampled_from([None, "utf-8", "iso2022_jp"]),
    st.none() | numbers,
    st.sampled_from(["", "1", "2-3, 7, 9000-10000"]),
)


@given(
    st.builds(Batch, st.lists(chunks, min_size=1))
    | st.builds(End, notes)
    | st.sampled_from([Ready(), OutOfMemory()])
)
def test_answers_come_out_as_they_went_in(answer: messages.Answer) -> None:
    assert messages.unpack_answer(body_of(messages.pack_answer(answer))) == answer


@pytest.mark.parametrize("kind", [IngestError, InvalidFile, UnsupportedFile, Unavailable])
def test_errors_keep_their_kind_and_words(kind: type[SherlockError]) -> None:
    told = messages.unpack_answer(body_of(messages.pack_answer(Failure(kind("A sentence.")))))
    assert isinstance(told, Failure)
    assert type(told.error) is kind
    assert told.error.message == "A sentence."


@given(name=st.text(), path=st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_requests_come_out_as_they_went_in(name: str, path: str) -> None:
    """File names may hold halves of surrogate pairs."""
    request = Read(messages.Path(path), name, ChunkingStrategy(512, 50))
    assert messages.unpack_read(body_of(messages.pack_read(request))) == request


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["chunks", "failure", "message"]), inner),
)


@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_what_makes_no_sense_is_garbled(body: bytes) -> None:
    for unpack in (messages.unpack_answer, messages.unpack_read):
        try:
            told = unpack(body)
        except Garbled:
            continue
        assert isinstance(told, Batch)
        assert all(isinstance(made.text, str) for made in told.chunks)


@pytest.mark.parametrize(
    "row",
    [
        [],
        [0, "a", 0, 1, None],
        [0, "a", 0, 1, None, None],
        ["0", "a", 0, 1, None, None, "", []],
        [0, "a", 0, 1, "1", 2, "", []],
        [0, "a", 2, 3, None, None, "no blanks", []],
        [0, "a", 0, 1, None, None, "", [1, 2]],
        [0, "a", 0, 1, None, None, "", [["1", 2]]],
    ],
)
def test_rows_that_are_no_chunks_are_garbled(row: list[object]) -> None:
    with pytest.raises(Garbled):
        messages.unpack_answer(json.dumps({"chunks": [row]}).encode())


def test_messages_have_a_bound_and_an_end() -> None:
    with pytest.raises(Garbled):
        messages.body_length(b"\xff\xff\xff\xff")
    packed = messages.pack_answer(End(ReadingNotes()))
    assert messages.receive(io.BytesIO(b"")) is None
    assert messages.receive(io.BytesIO(packed[:2])) is None
    assert messages.receive(io.BytesIO(packed[:-1])) is None
