"""`/vector_stores`."""

import openai

from .rows import Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)


@row("POST", "/vector_stores", "nothing asked: a store without a name")
def _(given: Given) -> None:
    store = given.client.vector_stores.create()
    equal((store.object, store.name, store.status), ("vector_store", "", "completed"))
    equal((store.usage_bytes, store.file_counts.total), (0, 0))
    holds(store.id.startswith("vs_"), store.id)


@row("POST", "/vector_stores", "with files, metadata, chunking and an expiry")
def _(given: Given) -> None:
    store = given.client.vector_stores.create(
        name="shelf",
        file_ids=[given.file("a.txt"), given.file("b.txt")],
        metadata={"site": "north"},
        chunking_strategy={
            "type": "static",
            "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50},
        },
        expires_after={"anchor": "last_active_at", "days": 3},
        extra_body={"description": "books"},
    )
    equal((store.name, store.metadata, store.file_counts.total), ("shelf", {"site": "north"}, 2))
    equal(store.expires_after.days if store.expires_after else None, 3)
    equal(store.expires_at, (store.last_active_at or 0) + 3 * 86_400)
    for file in given.client.vector_stores.files.list(store.id):
        done = given.client.vector_stores.files.poll(file.id, vector_store_id=store.id)
        equal(done.status, "completed")
        equal(done.chunking_strategy.static.max_chunk_size_tokens, 200)  # type: ignore[union-attr]


@row("POST", "/vector_stores", "a file nobody knows: 404; a bad expiry: 400")
def _(given: Given) -> None:
    client = given.client
    refused(openai.NotFoundError, lambda: client.vector_stores.create(file_ids=["file-unknown"]))
    refused(
        openai.BadRequestError,
        lambda: client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 366}),
        param="expires_after.days",
        code="integer_above_max_value",
    )


@row("GET", "/vector_stores", "pages by after and before, in both orders", alone=True)
def _(given: Given) -> None:
    stores = given.client.vector_stores
    made = [stores.create(name=f"page {n}").id for n in range(4)]
    newest_first = [store.id for store in stores.list(limit=2)]
    equal(sorted(newest_first), sorted([*made, given.animals]))
    equal([store.id for store in stores.list(limit=3, order="asc")], newest_first[::-1])
    after = stores.list(after=newest_first[1], limit=2)
    equal(([store.id for store in after.data], after.has_more), (newest_first[2:4], True))
    before = stores.list(before=newest_first[1])
    equal([store.id for store in before.data], newest_first[:1])
    refused(openai.BadRequestError, lambda: stores.list(limit=101), param="limit")


@row("GET", "/vector_stores/{vector_store_id}", "live counts and status; unknown: 404")
def _(given: Given) -> None:
    store = given.client.vector_stores.retrieve(given.animals)
    counts = store.file_counts
    equal((counts.completed, counts.in_progress, counts.failed, counts.total), (2, 0, 0, 2))
    equal((store.name, store.status), ("animals", "completed"))
    holds(store.usage_bytes > 0, "it takes no space")
    refused(openai.NotFoundError, lambda: given.client.vector_stores.retrieve("vs_unknown"))


@row("POST", "/vector_stores/{vector_store_id}", "absent keeps, null clears")
def _(given: Given) -> None:
    stores = given.client.vector_stores
    made = stores.create(
        name="old", metadata={"a": "1"}, expires_after={"anchor": "last_active_at", "days": 1}
    )
    named = stores.update(made.id, name="new")
    equal((named.name, named.metadata), ("new", {"a": "1"}))
    holds(named.expires_after is not None, "the expiry is lost")
    cleared = stores.update(made.id, metadata=None, expires_after=None)
    equal((cleared.name, cleared.metadata or {}, cleared.expires_after), ("new", {}, None))
    refused(openai.NotFoundError, lambda: stores.update("vs_unknown", name="x"))


@row("DELETE", "/vector_stores/{vector_store_id}", "the files stay; again: 404")
def _(given: Given) -> None:
    stores = given.client.vector_stores
    store = stores.create(name="brief").id
    file = given.ingested(store, "brief.txt", "Brief is the day of a mayfly.")
    deleted = stores.delete(store)
    equal((deleted.id, deleted.object, deleted.deleted), (store, "vector_store.deleted", True))
    equal(given.client.files.retrieve(file).id, file)
    refused(openai.NotFoundError, lambda: stores.search(store, query="mayfly"))
    refused(openai.NotFoundError, lambda: stores.delete(store))
