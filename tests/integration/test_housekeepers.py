"""Several housekeepers at once on one database, while it is in use."""

import asyncio
import logging
import time

import pytest
from sqlalchemy import text
from tests.fakes_files import InMemoryFileStore
from tests.ports.test_catalog import CHUNKING, a_file, a_store, attach

from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_ingest_requests import PostgresIngestRequests
from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
from sherlock.rag.adapters.postgres_responses import PostgresResponses
from sherlock.rag.adapters.postgres_uploads import PostgresUploadRecords
from sherlock.rag.application.files import Files
from sherlock.rag.application.housekeeping import Housekeeper
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.uploads import Uploads
from sherlock.rag.domain.errors import NotFound, VectorStoreExpired
from sherlock.rag.domain.models import StoredFile, VectorStore, WorkspaceId

_EXPIRE_FILES = text("""
    update knowledge_files set expires_at = now()
    where workspace_id = :workspace and id = any(CAST(:ids AS text[]))
""")


async def test_they_clear_away_what_has_expired_and_nothing_else(
    database: Database, workspace: WorkspaceId, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, blobs = PostgresCatalog(database), InMemoryFileStore()
    objects = Objects(PostgresLooseObjects(database), blobs)
    uploads = Uploads(PostgresUploadRecords(database), Files(catalog, blobs, objects, 1000), blobs)
    files = [a_file(workspace) for _ in range(40)]
    for file in files:
        await catalog.add_file(file)
        blobs.blobs[file.blob_key] = b"text"
    gone, kept = files[:20], files[20:]
    ids = [file.id for file in files]
    overdue = a_store(workspace, last_active_at=int(time.time()) - 3 * 86_400, expires_after_days=2)
    overdue = await catalog.add_vector_store(overdue, ids, CHUNKING)
    active = await catalog.add_vector_store(a_store(workspace, expires_after_days=2), ids, CHUNKING)
    async with database.transaction() as connection:
        await connection.execute(_EXPIRE_FILES, {"workspace": workspace, "ids": [file.id for file in gone]})

    responses, requests = PostgresResponses(database), PostgresIngestRequests(database)

    async def keep_house() -> None:
        while await Housekeeper(
            catalog, blobs, uploads, responses, requests, PgvectorIndex(database), objects
        ).run_once():
            pass

    async def use(store: VectorStore, file: StoredFile) -> None:
        try:
            await attach(catalog, workspace, store, file)
            await catalog.touch_vector_stores(workspace, [store.id])
        except (NotFound, VectorStoreExpired):
            assert store is overdue or file in gone

    with caplog.at_level(logging.WARNING):
        await asyncio.gather(
            *(keep_house() for _ in range(3)), *(use(store, f) for f in files for store in (active, overdue))
        )
    assert caplog.records == [], "no duty failed"
    assert {*blobs.blobs} == {file.blob_key for file in kept}
    assert await catalog.recorded(workspace, ids) == {file.id for file in kept}
    assert (await catalog.get_vector_store(workspace, active.id)).file_counts.total == len(kept)
    emptied = await catalog.get_vector_store(workspace, overdue.id)
    assert (emptied.status, emptied.file_counts.total) == ("expired", 0)
