"""Uploads in parts through the official client, and what is answered to those who get them wrong."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import httpx
import openai
import pytest
from openai.types import Upload
from tests.contract.data.check_response import violations
from tests.serving import Served

CONTENT = os.urandom(1000).hex().encode() * 50  # text of 100,000 bytes


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with rag_on.http() as client:
        yield client


def create(client: openai.OpenAI, size: int = 6, **changes: Any) -> Upload:
    asked = {"bytes": size, "filename": "notes.txt", "mime_type": "text/plain", "purpose": "user_data"}
    return client.uploads.create(**{**asked, **changes})


def add(client: openai.OpenAI, upload: Upload, data: bytes) -> str:
    return client.uploads.parts.create(upload.id, data=data).id


def refused(answer: httpx.Response, path: str) -> tuple[int, str | None, str | None]:
    """Status, param and code of an error that has the published shape."""
    assert not violations("POST", path, answer.status_code, answer.json())
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def test_an_upload_from_creation_to_a_file(client: openai.OpenAI, http: httpx.Client) -> None:
    made = http.post(
        "/v1/uploads",
        json={
            "filename": "Überblick 日本.txt",
            "purpose": "assistants",
            "bytes": len(CONTENT),
            "mime_type": "text/plain",
            "expires_after": {"anchor": "created_at", "seconds": 3600},
        },
    )
    assert not violations("POST", "/uploads", 200, made.json())
    upload = Upload.construct(**made.json())
    assert (upload.status, upload.bytes, upload.file) == ("pending", len(CONTENT), None)
    assert upload.expires_at == upload.created_at + 3600
    pieces = [CONTENT[at : at + 30_000] for at in range(0, len(CONTENT), 30_000)]
    with ThreadPoolExecutor(4) as pool:
        ids = [*pool.map(lambda piece: add(client, upload, piece), pieces)]
    part = http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("upload", b"unused")})
    assert not violations("POST", "/uploads/{upload_id}/parts", 200, part.json())
    assert part.json()["upload_id"] == upload.id

    body = {"part_ids": ids, "md5": hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()}
    done = http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert not violations("POST", "/uploads/{upload_id}/complete", 200, done.json())
    assert http.post(f"/v1/uploads/{upload.id}/complete", json=body).json() == done.json()
    file = client.files.retrieve(done.json()["file"]["id"])
    assert (file.filename, file.bytes) == ("Überblick 日本.txt", len(CONTENT))
    assert file.expires_at == file.created_at + 3600
    assert client.files.content(file.id).content == CONTENT
    store = client.vector_stores.create()
    attached = client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id)
    assert attached.status == "completed"


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_the_clients_own_chunked_upload(client: openai.OpenAI, size: int) -> None:
    content = CONTENT[:size]
    completed = client.uploads.upload_file_chunked(
        file=content,
        filename="a.txt",
        bytes=size,
        mime_type="text/plain",
        purpose="batch",
        part_size=7_001,
    )
    assert completed.status == "completed"
    assert completed.file.expires_at == completed.file.created_at + 30 * 86_400
    assert client.files.content(completed.file.id).content == content


def test_cancelling(client: openai.OpenAI, http: httpx.Client) -> None:
    upload = create(client)
    add(client, upload, b"abc")
    assert client.uploads.cancel(upload.id).status == "cancelled"
    # As the python client sends it, and as the node client does.
    url, path = f"/v1/uploads/{upload.id}/cancel", "/uploads/{upload_id}/cancel"
    for headers in ({"content-type": "application/json"}, {"content-length": "0"}):
        again = http.post(url, headers=headers)
        assert not violations("POST", path, 200, again.json())
        assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        add(client, upload, b"def")


def test_many_that_complete_at_once_get_one_file(client: openai.OpenAI) -> None:
    upload = create(client, len(CONTENT))
    ids = [add(client, upload, CONTENT)]
    with ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(lambda _: client.uploads.complete(upload.id, part_ids=ids), range(6))]
    [file_id] = {answer.file.id for answer in answers if answer.file}
    assert client.files.content(file_id).content == CONTENT


def test_what_is_refused_can_be_mended(client: openai.OpenAI, http: httpx.Client) -> None:
    upload = create(client)
    one, two, more = [add(client, upload, data) for data in (b"one", b"two", b"more")]
    url, path = f"/v1/uploads/{upload.id}/complete", "/uploads/{upload_id}/complete"
    for body, param in (
        ({"part_ids": [one]}, "part_ids"),
        ({"part_ids": [one, more]}, "part_ids"),
        ({"part_ids": [one, one]}, "part_ids"),
        ({"part_ids": [one, "part_unknown"]}, "part_ids"),
        ({"part_ids": [one, two], "md5": "0" * 32}, "md5"),
        ({"part_ids": [one, two], "md5": "no digest"}, "md5"),
        ({"part_ids": "one"}, "part_ids"),
        ({"part_ids": [one, 2]}, "part_ids[1]"),
        ({}, "part_ids"),
        ({"part_ids": [one, two], "extra": 1}, "extra"),
    ):
        status, named, _ = refused(http.post(url, json=body), path)
        assert (status, named) == (400, param), body
    completed = client.uploads.complete(upload.id, part_ids=[one, two])
    assert completed.file is not None
    assert client.files.content(completed.file.id).content == b"onetwo"
    assert refused(http.post(url, json={"part_ids": [two, one]}), path) == (
        400,
        "upload_id",
        "upload_completed",
    )
    assert refused(http.post(f"/v1/uploads/{upload.id}/cancel"), "/uploads/{upload_id}/cancel")[0] == 400


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"bytes": 1_000_001}, "bytes", "file_too_large"),
        ({"bytes": 10**30}, "bytes", "file_too_large"),
        ({"bytes": -1}, "bytes", "integer_below_min_value"),
        ({"bytes": "6"}, "bytes", "invalid_type"),
        ({"bytes": 6.5}, "bytes", "invalid_type"),
        ({"bytes": None}, "bytes", "invalid_type"),
        ({"purpose": "assistants_output"}, "purpose", "invalid_value"),
        ({"mime_type": None}, "mime_type", "invalid_type"),
        ({"filename": ""}, "filename", "string_below_min_length"),
        ({"filename": "a\0b"}, "filename", "invalid_value"),
        (
            {"expires_after": {"anchor": "created_at", "seconds": 3599}},
            "expires_after.seconds",
            "integer_below_min_value",
        ),
        ({"surplus": 1}, "surplus", "unknown_parameter"),
    ],
)
def test_uploads_that_cannot_be_made(
    http: httpx.Client, changes: dict[str, object], param: str, code: str
) -> None:
    body = {"bytes": 6, "filename": "notes.txt", "mime_type": "text/plain", "purpose": "vision", **changes}
    assert refused(http.post("/v1/uploads", json=body), "/uploads") == (400, param, code)


def test_parts_that_cannot_be_taken(client: openai.OpenAI, http: httpx.Client) -> None:
    upload = create(client)
    url, path = f"/v1/uploads/{upload.id}/parts", "/uploads/{upload_id}/parts"
    for sent, param in (
        ({"json": {"data": "text"}}, None),
        ({"files": {"file": ("a", b"x")}}, "data"),
        ({"files": {"data": ("a", b"x")}, "data": {"purpose": "vision"}}, "purpose"),
    ):
        status, named, _ = refused(http.post(url, **sent), path)  # type: ignore[arg-type]
        assert (status, named) == (400, param), sent
    boundary = {"content-type": "multipart/form-data; boundary=b"}
    half = b'--b\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\nhalf'
    assert refused(http.post(url, content=half, headers=boundary), path)[0] == 400
    unknown = http.post("/v1/uploads/upload_unknown/parts", files={"data": ("a", b"x")})
    assert refused(unknown, path)[0] == 404


def test_a_part_larger_than_the_upload_is_refused_while_it_comes(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    upload = create(client, 4 * 65_536)
    url = f"/v1/uploads/{upload.id}/parts"
    head = b'--b\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n'
    block = b"x" * 65_536

    def body(blocks: int) -> Iterator[bytes]:
        yield head
        yield from itertools.repeat(block, blocks)
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert http.post(url, content=body(4), headers=headers).status_code == 200
    answer = http.post(url, content=body(5), headers=headers)
    assert refused(answer, "/uploads/{upload_id}/parts") == (400, "data", "file_too_large")


@pytest.mark.parametrize("call", ["complete", "cancel"])
def test_unknown_uploads_are_not_found(http: httpx.Client, call: str) -> None:
    for strange in ("upload_unknown", "file-1", "%00", "x" * 3000):
        answer = http.post(f"/v1/uploads/{strange}/{call}", json={"part_ids": []})
        assert refused(answer, f"/uploads/{{upload_id}}/{call}")[0] == 404


def test_a_file_nobody_can_read_is_refused_at_the_end(client: openai.OpenAI, http: httpx.Client) -> None:
    binary = bytes(range(256))
    upload = create(client, 256, filename="a.exe", purpose="assistants")
    body = {"part_ids": [add(client, upload, binary)]}
    answer = http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert refused(answer, "/uploads/{upload_id}/complete")[::2] == (400, "unsupported_file_type")


async def expire(upload_id: str, database_url: str) -> None:
    database = await asyncpg.connect(database_url)
    try:
        await database.execute(
            "update sherlock.uploads set expires_at = now() - interval '1 second' where id = $1", upload_id
        )
    finally:
        await database.close()


def test_an_upload_expires_after_an_hour(
    client: openai.OpenAI, http: httpx.Client, own_database_url: str
) -> None:
    upload = create(client)
    part = add(client, upload, b"abcdef")
    asyncio.run(expire(upload.id, own_database_url))
    for call, body in (("complete", {"part_ids": [part]}), ("cancel", None)):
        answer = http.post(f"/v1/uploads/{upload.id}/{call}", json=body)
        assert refused(answer, f"/uploads/{{upload_id}}/{call}") == (400, "upload_id", "upload_expired")
