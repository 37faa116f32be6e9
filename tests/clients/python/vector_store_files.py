"""`/vector_stores/{vector_store_id}/files`."""

import openai

from .rows import Given, Row, equal, holds, named, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
FILES = "/vector_stores/{vector_store_id}/files"
FILE = FILES + "/{file_id}"


@row("POST", FILES, "at once, with attributes and chunking; twice is once")
def _(given: Given) -> None:
    files = given.client.vector_stores.files
    store, file = given.client.vector_stores.create().id, given.file()
    attached = files.create(
        store,
        file_id=file,
        attributes={"year": 2024, "draft": False, "team": "north"},
        chunking_strategy={
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0},
        },
    )
    equal((attached.id, attached.object, attached.vector_store_id), (file, "vector_store.file", store))
    holds(attached.status in ("in_progress", "completed"), attached.status)
    equal(attached.attributes, {"year": 2024, "draft": False, "team": "north"})
    again = files.create(store, file_id=file)
    equal((again.id, again.created_at), (file, attached.created_at))
    done = files.poll(file, vector_store_id=store)
    equal(done.status, "completed")
    equal(done.chunking_strategy.type, "static")  # type: ignore[union-attr]
    equal(given.client.vector_stores.retrieve(store).file_counts.total, 1)


@row("POST", FILES, "bad attributes and chunking: 400; unknown ids: 404")
def _(given: Given) -> None:
    files = given.client.vector_stores.files
    store, file = given.client.vector_stores.create().id, given.file()
    refused(
        openai.BadRequestError,
        lambda: files.create(store, file_id=file, attributes={"a": "v" * 513}),
        param="attributes.a",
        code="string_above_max_length",
    )
    refused(
        openai.BadRequestError,
        lambda: files.create(
            store,
            file_id=file,
            chunking_strategy={
                "type": "static",
                "static": {"max_chunk_size_tokens": 99, "chunk_overlap_tokens": 0},
            },
        ),
        param="chunking_strategy.static.max_chunk_size_tokens",
    )
    refused(openai.NotFoundError, lambda: files.create(store, file_id="file-unknown"))
    refused(openai.NotFoundError, lambda: files.create("vs_unknown", file_id=file))
    equal(given.client.vector_stores.retrieve(store).file_counts.total, 0)


@row("POST", FILES, "upload_and_poll ends completed and searchable")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    done = given.client.vector_stores.files.upload_and_poll(
        vector_store_id=store, file=named("Badgers dig setts.", "badger.txt")
    )
    equal((done.status, done.last_error), ("completed", None))
    hits = given.client.vector_stores.search(store, query="badgers").data
    equal([hit.filename for hit in hits], ["badger.txt"])


@row("POST", FILES, "a file that cannot be read ends failed, with the reason")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    done = given.client.vector_stores.files.upload_and_poll(
        vector_store_id=store, file=named("  \n ", "empty.txt")
    )
    equal(done.status, "failed")
    equal(done.last_error.code if done.last_error else None, "invalid_file")
    image = given.client.files.create(file=("a.png", b"\x89PNG\r\n\x1a\n\x00"), purpose="vision").id
    failed = given.client.vector_stores.files.create_and_poll(image, vector_store_id=store)
    equal(
        (failed.status, failed.last_error.code if failed.last_error else None), ("failed", "unsupported_file")
    )
    counts = given.client.vector_stores.retrieve(store).file_counts
    equal((counts.failed, counts.in_progress, counts.total), (2, 0, 2))


@row("GET", FILES, "by status, in pages; the id is the file's")
def _(given: Given) -> None:
    files = given.client.vector_stores.files
    store = given.client.vector_stores.create(file_ids=[given.file(f"{n}.txt") for n in range(3)]).id
    empty = given.file("empty.txt", " ")
    files.create_and_poll(empty, vector_store_id=store)
    for file in files.list(store):
        files.poll(file.id, vector_store_id=store)
    equal([file.id for file in files.list(store, filter="failed")], [empty])
    listed = [file.id for file in files.list(store, filter="completed", limit=2)]
    equal((len(listed), len(set(listed))), (3, 3))
    equal([file.id for file in files.list(store, limit=3, order="asc")][-1], empty)
    first = files.list(store, limit=1)
    equal((first.data[0].id, first.has_more), (empty, True))
    equal(files.list(store, filter="in_progress").data, [])


@row("GET", FILE, "says when to ask again, and last_error is there")
def _(given: Given) -> None:
    answer = given.client.vector_stores.files.with_raw_response.retrieve(
        given.mouse, vector_store_id=given.animals
    )
    holds(200 <= int(answer.headers["openai-poll-after-ms"]) <= 1000, "openai-poll-after-ms is out of range")
    file = answer.parse()
    equal((file.id, file.status, file.last_error), (given.mouse, "completed", None))
    holds("last_error" in file.to_dict(), "last_error is missing")
    refused(
        openai.NotFoundError,
        lambda: given.client.vector_stores.files.retrieve("file-unknown", vector_store_id=given.animals),
    )


@row("POST", FILE, "attributes are replaced, and search sees it")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    file = given.ingested(store, "fox.txt", "Foxes are red.", {"a": 1, "b": "x"})
    changed = given.client.vector_stores.files.update(file, vector_store_id=store, attributes={"c": True})
    equal(changed.attributes, {"c": True})
    hits = given.client.vector_stores.search(
        store, query="foxes", filters={"type": "eq", "key": "c", "value": True}
    ).data
    equal([hit.attributes for hit in hits], [{"c": True}])
    gone = given.client.vector_stores.search(
        store, query="foxes", filters={"type": "eq", "key": "a", "value": 1}
    )
    equal(gone.data, [])
    cleared = given.client.vector_stores.files.update(file, vector_store_id=store, attributes=None)
    equal(cleared.attributes or {}, {})


@row("DELETE", FILE, "counts drop, search forgets it, the file stays; again: 404")
def _(given: Given) -> None:
    files = given.client.vector_stores.files
    store = given.client.vector_stores.create().id
    file = given.ingested(store, "elk.txt", "Elks swim well.")
    deleted = files.delete(file, vector_store_id=store)
    equal((deleted.id, deleted.object, deleted.deleted), (file, "vector_store.file.deleted", True))
    equal(given.client.vector_stores.retrieve(store).file_counts.total, 0)
    equal(given.client.vector_stores.search(store, query="elks").data, [])
    equal(given.client.files.retrieve(file).id, file)
    refused(openai.NotFoundError, lambda: files.delete(file, vector_store_id=store))


@row("GET", FILE + "/content", "the whole text in one page")
def _(given: Given) -> None:
    store = given.client.vector_stores.create().id
    text = "\n\n".join(f"Paragraph {n} is about owls and about nothing else." for n in range(2_000))
    file = given.ingested(store, "long.txt", text)
    page = given.client.vector_stores.files.content(file, vector_store_id=store)
    equal("".join(part.text or "" for part in page.data), text)
    equal(page.data[0].type, "text")
    equal((page.object, page.has_more), ("vector_store.file_content.page", False))
