"""`/files`."""

import tempfile
from pathlib import Path

import openai

from .rows import Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)

NAME = 'Überblick "2024" 日本.txt'


@row("POST", "/files", "UTF-8 names, expires_after, status processed")
def _(given: Given) -> None:
    content = "Grüße\n".encode() * 100
    made = given.client.files.create(
        file=(NAME, content),
        purpose="user_data",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    equal((made.filename, made.bytes, made.purpose), (NAME, len(content), "user_data"))
    equal((made.object, made.status), ("file", "processed"))
    holds(abs((made.expires_at or 0) - made.created_at - 3600) <= 1, "it does not expire in an hour")


@row("POST", "/files", "from disk, the fields in the client's own order")
def _(given: Given) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "from disk.md")
        path.write_bytes(b"# Owls\n" * 50_000)
        made = given.client.files.create(file=path, purpose="assistants")
    equal((made.filename, made.bytes), ("from disk.md", 350_000))


@row("POST", "/files", "all six purposes")
def _(given: Given) -> None:
    for purpose in ("assistants", "batch", "fine-tune", "vision", "user_data", "evals"):
        file = ("a.txt", b"text")
        holds(given.client.files.create(file=file, purpose=purpose).id.startswith("file-"), purpose)  # type: ignore[arg-type]


@row("POST", "/files", "too large: 400 file_too_large")
def _(given: Given) -> None:
    file = ("big.txt", b"x" * 1_000_001)
    refused(
        openai.BadRequestError,
        lambda: given.client.files.create(file=file, purpose="assistants"),
        code="file_too_large",
    )


@row("POST", "/files", "a type nobody knows: 400 unsupported_file_type")
def _(given: Given) -> None:
    file = ("tool.bin", bytes(range(256)))
    refused(
        openai.BadRequestError,
        lambda: given.client.files.create(file=file, purpose="assistants"),
        code="unsupported_file_type",
    )


@row("GET", "/files", "purpose filter, order, pages without gaps", alone=True)
def _(given: Given) -> None:
    files = given.client.files
    made = [files.create(file=("p.txt", b"text"), purpose="fine-tune").id for _ in range(5)]
    first = files.list(purpose="fine-tune", order="desc", limit=2)
    equal((len(first.data), first.has_more), (2, True))
    newest_first = [file.id for file in files.list(purpose="fine-tune", order="desc", limit=2)]
    equal(sorted(newest_first), sorted(made))
    oldest_first = [file.id for file in files.list(purpose="fine-tune", order="asc", limit=3)]
    equal(oldest_first, newest_first[::-1])
    refused(openai.BadRequestError, lambda: files.list(limit=10_001), param="limit")


@row("GET", "/files", "everything in one page when nothing is asked", alone=True)
def _(given: Given) -> None:
    made = {given.file() for _ in range(25)}
    page = given.client.files.list()
    holds(made <= {file.id for file in page.data}, "a file is missing")
    equal(page.has_more, False)


@row("GET", "/files/{file_id}", "reaches processed; unknown: 404")
def _(given: Given) -> None:
    made = given.file()
    equal(given.client.files.wait_for_processing(made, poll_interval=0.1).status, "processed")
    equal(given.client.files.retrieve(made).id, made)
    refused(openai.NotFoundError, lambda: given.client.files.retrieve("file-unknown"))


@row("DELETE", "/files/{file_id}", "gone from every store and from search; again: 404")
def _(given: Given) -> None:
    client = given.client
    stores = [client.vector_stores.create().id for _ in range(2)]
    file = given.ingested(stores[0], "owl.txt", "Owls hunt at night.")
    client.vector_stores.files.create_and_poll(file, vector_store_id=stores[1])
    equal([hit.file_id for hit in client.vector_stores.search(stores[0], query="owls").data], [file])
    deleted = client.files.delete(file)
    equal((deleted.id, deleted.object, deleted.deleted), (file, "file", True))
    for store in stores:
        equal(client.vector_stores.search(store, query="owls").data, [])
        equal(client.vector_stores.retrieve(store).file_counts.total, 0)
        refused(
            openai.NotFoundError,
            lambda store=store: client.vector_stores.files.retrieve(file, vector_store_id=store),
        )
    refused(openai.NotFoundError, lambda: client.files.delete(file))


@row("GET", "/files/{file_id}/content", "byte-exact, whole and streamed")
def _(given: Given) -> None:
    content = bytes(range(256)) * 2_000
    made = given.client.files.create(file=("bytes.bin", content), purpose="batch").id
    equal(given.client.files.content(made).read(), content)
    with given.client.files.with_streaming_response.content(made) as response:
        equal(b"".join(response.iter_bytes(4_096)), content)
    refused(openai.NotFoundError, lambda: given.client.files.content("file-unknown"))
