"""`/v1/uploads`: files that are sent in parts."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request

from sherlock.deps import CallerDep, RagDep
from sherlock.http_errors import documented
from sherlock.json_body import JsonRoute
from sherlock.multipart import Upload
from sherlock.rag.domain.errors import InvalidRequest, abridged
from sherlock.upload_schemas import (
    CompleteUploadRequest,
    CreateUploadRequest,
    UploadObject,
    UploadPartObject,
    upload_object,
    upload_part_object,
)

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], route_class=JsonRoute)


@router.post("", operation_id="createUpload", responses=documented(400, 413, 500, 503))
async def create_upload(body: CreateUploadRequest, caller: CallerDep, rag: RagDep) -> UploadObject:
    """Announce a file that is to be sent in parts, within an hour."""
    upload = await rag.uploads.create(
        caller,
        filename=body.filename,
        purpose=body.purpose,
        size=body.bytes,
        expires_after_s=body.expires_after.seconds if body.expires_after else None,
    )
    return upload_object(upload)


PART_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "additionalProperties": False,
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post(
    "/{upload_id}/parts",
    operation_id="addUploadPart",
    openapi_extra=PART_BODY,
    responses=documented(400, 404, 500, 503),
)
async def add_upload_part(
    upload_id: str, request: Request, caller: CallerDep, rag: RagDep
) -> UploadPartObject:
    """Send a part of at most 64 MiB; parts may come in any order, and several at a time."""
    form = Upload(request.stream(), request.headers.get("content-type"), file_field="data")
    await form.begin()
    return upload_part_object(await rag.uploads.add_part(caller, upload_id, only_file(form)))


async def only_file(form: Upload) -> AsyncIterator[bytes]:
    """The file of a form that has nothing beside it."""
    async for piece in form.data():
        yield piece
    for name in await form.finish():
        raise InvalidRequest(
            f"Unknown parameter: '{abridged(name)}'.", param=abridged(name), code="unknown_parameter"
        )


@router.post(
    "/{upload_id}/complete", operation_id="completeUpload", responses=documented(400, 404, 413, 500, 503)
)
async def complete_upload(
    upload_id: str, body: CompleteUploadRequest, caller: CallerDep, rag: RagDep
) -> UploadObject:
    """Put the parts together, in the order given; repeated with the same parts, it has the same answer."""
    return upload_object(await rag.uploads.complete(caller, upload_id, body.part_ids, body.md5))


@router.post("/{upload_id}/cancel", operation_id="cancelUpload", responses=documented(400, 404, 500, 503))
async def cancel_upload(upload_id: str, caller: CallerDep, rag: RagDep) -> UploadObject:
    """End the upload and remove its parts."""
    return upload_object(await rag.uploads.cancel(caller, upload_id))
