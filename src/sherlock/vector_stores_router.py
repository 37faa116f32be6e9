"""`/v1/vector_stores`: the stores, the files in them, and search."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from sherlock.deps import CallerDep, IncludeDep, Limit, Order, RagDep, ServicesDep
from sherlock.http_errors import documented
from sherlock.json_body import JsonRoute
from sherlock.rag.domain.models import PageRequest, Status
from sherlock.schemas import POLL_AFTER_MS, ListObject, list_object
from sherlock.search_schemas import SearchRequest, SearchResultsPage, search_results_page, stages_header
from sherlock.vector_store_schemas import (
    AttachFileRequest,
    CreateVectorStoreRequest,
    DeletedVectorStore,
    DeletedVectorStoreFile,
    FileContentPage,
    UpdateAttributesRequest,
    UpdateVectorStoreRequest,
    VectorStoreFileObject,
    VectorStoreObject,
    chunking_strategy,
    file_content_page,
    vector_store_file_object,
    vector_store_object,
)

router = APIRouter(prefix="/v1/vector_stores", tags=["vector stores"], route_class=JsonRoute)


# ── stores ──────────────────────────────────────────────────────────────────


@router.post("", operation_id="createVectorStore", responses=documented(400, 404, 413, 429, 500, 503))
async def create_vector_store(
    caller: CallerDep, rag: RagDep, body: CreateVectorStoreRequest | None = None
) -> VectorStoreObject:
    """Make a store; files named in `file_ids` start to be ingested."""
    body = body or CreateVectorStoreRequest()
    store = await rag.vector_stores.create(
        caller,
        name=body.name,
        description=body.description,
        metadata=body.metadata,
        expires_after_days=body.expires_after.days if body.expires_after else None,
        file_ids=body.file_ids,
        chunking=chunking_strategy(body.chunking_strategy),
    )
    return vector_store_object(store)


@router.get("", operation_id="listVectorStores", responses=documented(400, 404, 500, 503))
async def list_vector_stores(
    caller: CallerDep,
    rag: RagDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
    before: str | None = None,
) -> ListObject[VectorStoreObject]:
    """The stores, newest first."""
    page = await rag.vector_stores.list(caller, PageRequest(limit, order, after, before))
    return list_object(page, vector_store_object)


@router.get("/{vector_store_id}", operation_id="getVectorStore", responses=documented(404, 500, 503))
async def retrieve_vector_store(vector_store_id: str, caller: CallerDep, rag: RagDep) -> VectorStoreObject:
    """The store, and how its files stand."""
    return vector_store_object(await rag.vector_stores.get(caller, vector_store_id))


@router.post(
    "/{vector_store_id}", operation_id="modifyVectorStore", responses=documented(400, 404, 413, 500, 503)
)
async def update_vector_store(
    vector_store_id: str, body: UpdateVectorStoreRequest, caller: CallerDep, rag: RagDep
) -> VectorStoreObject:
    """Members left out keep their value, `null` clears it."""
    return vector_store_object(await rag.vector_stores.update(caller, vector_store_id, body.to_changes()))


@router.delete("/{vector_store_id}", operation_id="deleteVectorStore", responses=documented(404, 500, 503))
async def delete_vector_store(vector_store_id: str, caller: CallerDep, rag: RagDep) -> DeletedVectorStore:
    """Remove the store and what was indexed in it; the files stay."""
    await rag.vector_stores.delete(caller, vector_store_id)
    return {"id": vector_store_id, "object": "vector_store.deleted", "deleted": True}


@router.post(
    "/{vector_store_id}/search",
    operation_id="searchVectorStore",
    responses=documented(400, 404, 409, 413, 500, 503),
)
async def search_vector_store(
    vector_store_id: str,
    body: SearchRequest,
    include: IncludeDep,
    caller: CallerDep,
    services: ServicesDep,
    rag: RagDep,
    response: Response,
) -> SearchResultsPage:
    """The best chunks, best first; scores lie in 0..1. The header `sherlock-stages` tells what was done."""
    # Over several stores an unknown one yields nothing; asked alone, it is an error.
    await rag.vector_stores.require(caller, vector_store_id)
    query = body.to_query(vector_store_id, services.settings.hybrid_alpha)
    retrieval = await rag.retriever.search(caller, query)
    response.headers["sherlock-stages"] = stages_header(retrieval)
    return search_results_page(retrieval, with_retrieval="sherlock" in include or "sherlock" in body.include)


# ── files in a store ────────────────────────────────────────────────────────


@router.post(
    "/{vector_store_id}/files",
    operation_id="createVectorStoreFile",
    responses=documented(400, 404, 409, 413, 429, 500, 503)
    | {202: {"model": VectorStoreFileObject, "description": "`sync` was asked and the job still goes on."}},
)
async def attach_file(
    vector_store_id: str,
    body: AttachFileRequest,
    caller: CallerDep,
    services: ServicesDep,
    rag: RagDep,
    response: Response,
    sync: Annotated[bool, Query(description="Wait for the ingest, for a limited time.")] = False,
) -> VectorStoreFileObject:
    """Queue a file for ingest and return at once; with `sync=true` wait for the job, for a limited time."""
    attached = await rag.vector_stores.attach(
        caller,
        vector_store_id,
        body.file_id,
        attributes=body.attributes,
        chunking=chunking_strategy(body.chunking_strategy),
    )
    if sync:
        timeout_s = services.settings.sync_timeout_s
        attached = await rag.vector_stores.wait(caller, vector_store_id, body.file_id, timeout_s)
        response.status_code = 202 if attached.status == "in_progress" else 200
    return vector_store_file_object(attached)


@router.get(
    "/{vector_store_id}/files", operation_id="listVectorStoreFiles", responses=documented(400, 404, 500, 503)
)
async def list_vector_store_files(
    vector_store_id: str,
    caller: CallerDep,
    rag: RagDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
    before: str | None = None,
    filter: Annotated[Status | None, Query(description="Only files of this status.")] = None,
) -> ListObject[VectorStoreFileObject]:
    """The files of the store, newest first; of one status where `filter` names it."""
    page = PageRequest(limit, order, after, before)
    files = await rag.vector_stores.list_files(caller, vector_store_id, page, filter)
    return list_object(files, vector_store_file_object)


@router.get(
    "/{vector_store_id}/files/{file_id}",
    operation_id="getVectorStoreFile",
    responses=documented(404, 500, 503),
)
async def retrieve_vector_store_file(
    vector_store_id: str, file_id: str, caller: CallerDep, rag: RagDep, response: Response
) -> VectorStoreFileObject:
    """How far the file's ingest is, and why it failed where it did."""
    response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return vector_store_file_object(await rag.vector_stores.get_file(caller, vector_store_id, file_id))


@router.post(
    "/{vector_store_id}/files/{file_id}",
    operation_id="updateVectorStoreFileAttributes",
    responses=documented(400, 404, 413, 500, 503),
)
async def update_attributes(
    vector_store_id: str, file_id: str, body: UpdateAttributesRequest, caller: CallerDep, rag: RagDep
) -> VectorStoreFileObject:
    """Replace all attributes of the file in this store."""
    updated = await rag.vector_stores.update_attributes(caller, vector_store_id, file_id, body.attributes)
    return vector_store_file_object(updated)


@router.delete(
    "/{vector_store_id}/files/{file_id}",
    operation_id="deleteVectorStoreFile",
    responses=documented(404, 500, 503),
)
async def detach_file(
    vector_store_id: str, file_id: str, caller: CallerDep, rag: RagDep
) -> DeletedVectorStoreFile:
    """Take the file out of the store; the file itself stays."""
    await rag.vector_stores.detach(caller, vector_store_id, file_id)
    return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


@router.get(
    "/{vector_store_id}/files/{file_id}/content",
    operation_id="retrieveVectorStoreFileContent",
    responses=documented(404, 500, 503),
)
async def vector_store_file_content(
    vector_store_id: str, file_id: str, caller: CallerDep, rag: RagDep
) -> FileContentPage:
    """The text that was read from the file."""
    return file_content_page(await rag.vector_stores.file_text(caller, vector_store_id, file_id))
