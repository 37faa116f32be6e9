"""`/uploads`: a file in parts."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from .rows import Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)


def begun(given: Given, size: int, **options: Any) -> Any:
    options = {"purpose": "assistants", **options}
    return given.client.uploads.create(filename="parts.txt", bytes=size, mime_type="text/plain", **options)


@row("POST", "/uploads", "pending, open for an hour, all six purposes")
def _(given: Given) -> None:
    for purpose in ("assistants", "batch", "fine-tune", "vision", "user_data", "evals"):
        upload = begun(given, 4, purpose=purpose)
        equal((upload.object, upload.status, upload.bytes), ("upload", "pending", 4))
        equal((upload.filename, upload.purpose, upload.file), ("parts.txt", purpose, None))
        holds(abs(upload.expires_at - upload.created_at - 3600) <= 1, "it is not open for an hour")


@row("POST", "/uploads", "more than a file may have: 400 file_too_large")
def _(given: Given) -> None:
    refused(openai.BadRequestError, lambda: begun(given, 1_000_001), code="file_too_large")


@row("POST", "/uploads/{upload_id}/parts", "in parallel")
def _(given: Given) -> None:
    upload = begun(given, 400_000)
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(
                lambda n: given.client.uploads.parts.create(upload.id, data=bytes([97 + n]) * 100_000),
                range(4),
            )
        )
    equal({(part.object, part.upload_id) for part in made}, {("upload.part", upload.id)})
    equal(len({part.id for part in made}), 4)
    done = given.client.uploads.complete(upload.id, part_ids=[part.id for part in reversed(made)])
    content = b"".join(bytes([97 + n]) * 100_000 for n in (3, 2, 1, 0))
    equal(given.client.files.content(done.file.id).read() == content, True)  # type: ignore[union-attr]
    refused(openai.NotFoundError, lambda: given.client.uploads.parts.create("upload_unknown", data=b"a"))


@row("POST", "/uploads/{upload_id}/complete", "in the order of part_ids, with the file inside")
def _(given: Given) -> None:
    upload = begun(given, 11, extra_body={"expires_after": {"anchor": "created_at", "seconds": 7200}})
    second = given.client.uploads.parts.create(upload.id, data=b"world").id
    first = given.client.uploads.parts.create(upload.id, data=b"hello ").id
    md5 = hashlib.md5(b"hello world", usedforsecurity=False).hexdigest()
    done = given.client.uploads.complete(upload.id, part_ids=[first, second], md5=md5)
    equal((done.id, done.status), (upload.id, "completed"))
    holds(done.file is not None, "there is no file inside")
    stored = given.client.files.retrieve(done.file.id)  # type: ignore[union-attr]
    equal((stored.filename, stored.bytes, stored.purpose), ("parts.txt", 11, "assistants"))
    holds(stored.expires_at is not None, "the file never expires")
    equal(given.client.files.content(stored.id).read(), b"hello world")


@row("POST", "/uploads/{upload_id}/complete", "wrong size, part or md5: 400, and it can be put right")
def _(given: Given) -> None:
    upload = begun(given, 5)
    part = given.client.uploads.parts.create(upload.id, data=b"hello").id
    for part_ids, md5 in (([], None), ([part, part], None), (["part_unknown"], None), ([part], "0" * 32)):
        options: Any = {"md5": md5} if md5 else {}
        refused(
            openai.BadRequestError,
            lambda part_ids=part_ids, options=options: given.client.uploads.complete(
                upload.id, part_ids=part_ids, **options
            ),
        )
    equal(given.client.uploads.complete(upload.id, part_ids=[part]).status, "completed")


@row("POST", "/uploads/{upload_id}/complete", "a large file in many parts")
def _(given: Given) -> None:
    content = b"Owls hunt at night. " * 20_000
    done = given.client.uploads.upload_file_chunked(
        file=content,
        filename="owls.txt",
        bytes=len(content),
        mime_type="text/plain",
        purpose="assistants",
        part_size=150_000,
    )
    equal((done.status, done.file.bytes), ("completed", len(content)))  # type: ignore[union-attr]
    equal(given.client.files.content(done.file.id).read() == content, True)  # type: ignore[union-attr]


@row("POST", "/uploads/{upload_id}/cancel", "without a body; no parts afterwards")
def _(given: Given) -> None:
    upload = begun(given, 5)
    given.client.uploads.parts.create(upload.id, data=b"he")
    equal(given.client.uploads.cancel(upload.id).status, "cancelled")
    refused(openai.BadRequestError, lambda: given.client.uploads.parts.create(upload.id, data=b"llo"))
    refused(openai.NotFoundError, lambda: given.client.uploads.cancel("upload_unknown"))
