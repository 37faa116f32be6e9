"""`/vector_stores/{vector_store_id}/file_batches`."""

from typing import Any

import openai

from .rows import Given, Row, equal, holds, named, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
BATCHES = "/vector_stores/{vector_store_id}/file_batches"
BATCH = BATCHES + "/{batch_id}"


def by_file(given: Given, store: str, files: list[Any]) -> Any:
    """A batch whose files have attributes of their own; older clients know no such parameter."""
    body: Any = {"file_ids": openai.NOT_GIVEN, "extra_body": {"files": files}}
    return given.client.vector_stores.file_batches.create(store, **body)


@row("POST", BATCHES, "file_ids with shared attributes, polled to the end")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    ids = [given.file(f"{n}.txt", f"Note {n} is about newts.") for n in range(3)]
    made = given.client.vector_stores.file_batches.create(store, file_ids=ids, attributes={"kind": "note"})
    equal((made.object, made.vector_store_id), ("vector_store.file_batch", store))
    holds(made.id.startswith("vsfb_"), made.id)
    equal((made.status, made.file_counts.total), ("in_progress", 3))
    done = given.client.vector_stores.file_batches.poll(made.id, vector_store_id=store)
    equal((done.status, done.file_counts.completed, done.file_counts.in_progress), ("completed", 3, 0))
    hits = given.client.vector_stores.search(store, query="newts").data
    equal({hit.file_id for hit in hits}, set(ids))
    equal([hit.attributes for hit in hits], [{"kind": "note"}] * 3)


@row("POST", BATCHES, "files with attributes and chunking of their own")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    first, second = given.file("1.txt"), given.file("2.txt")
    static = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10}}
    made = by_file(
        given,
        store,
        [{"file_id": first, "attributes": {"n": 1}}, {"file_id": second, "chunking_strategy": static}],
    )
    done = given.client.vector_stores.file_batches.poll(made.id, vector_store_id=store)
    equal((done.status, done.file_counts.completed), ("completed", 2))
    files = {file.id: file for file in given.client.vector_stores.files.list(store)}
    equal((files[first].attributes, files[second].attributes or {}), ({"n": 1}, {}))
    equal(files[second].chunking_strategy.static.max_chunk_size_tokens, 100)  # type: ignore[union-attr]


@row("POST", BATCHES, "upload_and_poll, one file without text among them")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    done = given.client.vector_stores.file_batches.upload_and_poll(
        store,
        files=[named("Newts swim.", "newt.txt"), named("Toads hop.", "toad.txt"), named(" ", "empty.txt")],
    )
    counts = done.file_counts
    equal((done.status, counts.completed, counts.failed, counts.in_progress), ("completed", 2, 1, 0))
    equal(len(given.client.vector_stores.search(store, query="newts swim, toads hop").data), 2)


@row("POST", BATCHES, "file_ids or files, not both, not neither, no unknown ones")
def _(given: Given) -> None:
    store, file = given.client.vector_stores.create().id, given.file()
    batches = given.client.vector_stores.file_batches
    refused(openai.BadRequestError, lambda: by_file(given, store, []))
    both: Any = {"file_ids": [file], "extra_body": {"files": [{"file_id": file}]}}
    refused(openai.BadRequestError, lambda: batches.create(store, **both))
    refused(openai.BadRequestError, lambda: batches.create(store, file_ids=[]), param="file_ids")
    refused(openai.BadRequestError, lambda: batches.create(store, file_ids=[file] * 2001), param="file_ids")
    refused(openai.NotFoundError, lambda: batches.create(store, file_ids=[file, "file-unknown"]))
    refused(openai.NotFoundError, lambda: batches.create("vs_unknown", file_ids=[file]))
    equal(given.client.vector_stores.retrieve(store).file_counts.total, 0)


@row("GET", BATCH, "status and counts in step, says when to ask again; unknown: 404")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    batches = given.client.vector_stores.file_batches
    made = batches.create(store, file_ids=[given.file(f"{n}.txt") for n in range(2)]).id
    while True:
        answer = batches.with_raw_response.retrieve(made, vector_store_id=store)
        holds(
            200 <= int(answer.headers["openai-poll-after-ms"]) <= 1000, "openai-poll-after-ms is out of range"
        )
        batch = answer.parse()
        equal(batch.file_counts.total, 2)
        equal(batch.status == "in_progress", batch.file_counts.in_progress > 0)
        if batch.status != "in_progress":
            break
    equal((batch.status, batch.file_counts.completed), ("completed", 2))
    refused(openai.NotFoundError, lambda: batches.retrieve("vsfb_unknown", vector_store_id=store))
    refused(openai.NotFoundError, lambda: batches.retrieve(made, vector_store_id=given.animals))


@row("POST", BATCH + "/cancel", "without a body; nothing stays in progress")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    batches = given.client.vector_stores.file_batches
    made = batches.create(store, file_ids=[given.file(f"{n}.txt", "Newts. " * 2_000) for n in range(5)]).id
    holds(batches.cancel(made, vector_store_id=store).id == made, "another batch came back")
    done = batches.poll(made, vector_store_id=store)
    holds(done.status in ("cancelled", "completed"), done.status)
    counts = done.file_counts
    equal((counts.in_progress, counts.cancelled + counts.completed), (0, 5))
    refused(openai.NotFoundError, lambda: batches.cancel("vsfb_unknown", vector_store_id=store))


@row("GET", BATCH + "/files", "by status, in pages, only those of the batch")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    batches = given.client.vector_stores.file_batches
    given.ingested(store, "other.txt", "Not of the batch.")
    ids = [given.file(f"{n}.txt") for n in range(3)]
    empty = given.file("empty.txt", " ")
    made = batches.create_and_poll(store, file_ids=[*ids, empty]).id
    listed = [file.id for file in batches.list_files(made, vector_store_id=store, limit=2)]
    equal(sorted(listed), sorted([*ids, empty]))
    completed = batches.list_files(made, vector_store_id=store, filter="completed")
    equal({file.id for file in completed}, set(ids))
    failed = batches.list_files(made, vector_store_id=store, filter="failed")
    equal([(file.id, file.last_error.code) for file in failed], [(empty, "invalid_file")])  # type: ignore[union-attr]
    refused(openai.NotFoundError, lambda: batches.list_files("vsfb_unknown", vector_store_id=store))
