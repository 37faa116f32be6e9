"""`/v1/vector_stores/{id}/file_batches`: many files attached at once."""

from fastapi import APIRouter, Response

from sherlock.deps import CallerDep, Limit, Order, RagDep
from sherlock.file_batch_schemas import CreateFileBatchRequest, FileBatchObject, file_batch_object
from sherlock.http_errors import documented
from sherlock.json_body import JsonRoute
from sherlock.rag.application.file_batches import BatchFile
from sherlock.rag.domain.models import PageRequest, Status
from sherlock.schemas import POLL_AFTER_MS, ListObject, list_object
from sherlock.vector_store_schemas import VectorStoreFileObject, chunking_strategy, vector_store_file_object

router = APIRouter(
    prefix="/v1/vector_stores/{vector_store_id}/file_batches", tags=["file batches"], route_class=JsonRoute
)


@router.post(
    "",
    operation_id="createVectorStoreFileBatch",
    responses=documented(400, 404, 409, 413, 429, 500, 503),
)
async def create_file_batch(
    vector_store_id: str, body: CreateFileBatchRequest, caller: CallerDep, rag: RagDep
) -> FileBatchObject:
    """Queue up to 2000 files for ingest: `file_ids`, or `files` with attributes and chunking of their own."""
    files = [
        BatchFile(one.file_id, one.attributes, chunking_strategy(one.chunking_strategy))
        for one in body.each()
    ]
    return file_batch_object(await rag.file_batches.create(caller, vector_store_id, files))


@router.get("/{batch_id}", operation_id="getVectorStoreFileBatch", responses=documented(404, 500, 503))
async def retrieve_file_batch(
    vector_store_id: str, batch_id: str, caller: CallerDep, rag: RagDep, response: Response
) -> FileBatchObject:
    """Its status and counts; they change in one step."""
    response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return file_batch_object(await rag.file_batches.get(caller, vector_store_id, batch_id))


@router.post(
    "/{batch_id}/cancel", operation_id="cancelVectorStoreFileBatch", responses=documented(404, 500, 503)
)
async def cancel_file_batch(
    vector_store_id: str, batch_id: str, caller: CallerDep, rag: RagDep
) -> FileBatchObject:
    """Cancel what is still in progress; a batch that has ended stays as it is."""
    return file_batch_object(await rag.file_batches.cancel(caller, vector_store_id, batch_id))


@router.get(
    "/{batch_id}/files",
    operation_id="listFilesInVectorStoreBatch",
    responses=documented(400, 404, 500, 503),
)
async def list_batch_files(
    vector_store_id: str,
    batch_id: str,
    caller: CallerDep,
    rag: RagDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
    before: str | None = None,
    filter: Status | None = None,
) -> ListObject[VectorStoreFileObject]:
    """The files of the batch, as they stand in the store."""
    page = PageRequest(limit, order, after, before)
    files = await rag.file_batches.list_files(caller, vector_store_id, batch_id, page, filter)
    return list_object(files, vector_store_file_object)
