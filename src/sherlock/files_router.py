"""`/v1/files`: upload, list, retrieve, delete, download."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sherlock import http_errors
from sherlock.deps import CallerDep, RagDep
from sherlock.file_schemas import (
    LONGEST_LIFE_S,
    SHORTEST_LIFE_S,
    DeletedFile,
    FileExpiration,
    FileObject,
    FilePurpose,
    UploadForm,
    file_object,
)
from sherlock.http_errors import documented
from sherlock.multipart import Upload
from sherlock.rag.application.files import UploadDetails
from sherlock.rag.domain.models import PageRequest, Purpose, StoredFile
from sherlock.schemas import InDigits, ListObject, list_object

router = APIRouter(prefix="/v1/files", tags=["files"])

EXPIRES_AFTER = {name: f"expires_after[{name}]" for name in FileExpiration.model_fields}

UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "For `assistants` and `user_data` of a kind that can be read.",
                        },
                        "purpose": {"type": "string", "enum": list(get_args(FilePurpose))},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": SHORTEST_LIFE_S,
                            "maximum": LONGEST_LIFE_S,
                            "description": "From upload to expiry.",
                        },
                    },
                    "dependentRequired": {
                        flat: [other for other in EXPIRES_AFTER.values() if other != flat]
                        for flat in EXPIRES_AFTER.values()
                    },
                }
            }
        },
    }
}


@router.post("", operation_id="createFile", openapi_extra=UPLOAD_BODY, responses=documented(400, 500, 503))
async def create_file(request: Request, caller: CallerDep, rag: RagDep) -> FileObject:
    """Store a file. It becomes searchable when it is attached to a vector store."""
    upload = Upload(request.stream(), request.headers.get("content-type"), file_field="file")
    filename = await upload.begin()
    upload_details_so_far(upload.fields)  # refuse before the bytes are read

    async def details() -> UploadDetails:
        return upload_details(await upload.finish())

    return file_object(await rag.files.upload(caller, filename, upload.data(), details))


def upload_details(fields: Mapping[str, str]) -> UploadDetails:
    """The form fields beside the file. Raises `RequestValidationError`, as a JSON body would."""
    body = unflattened(fields)
    try:
        form = UploadForm.model_validate(body)
    except ValidationError as error:
        raise refusal(error.errors(), body) from None
    return UploadDetails(form.purpose, form.expires_after.seconds if form.expires_after else None)


def upload_details_so_far(fields: Mapping[str, str]) -> None:
    """Refuses like `upload_details` what is wrong by now; what is missing may yet come behind the file."""
    body = unflattened(fields)
    try:
        UploadForm.model_validate(body)
    except ValidationError as error:
        wrong = [entry for entry in error.errors() if entry["type"] != "missing"]
        if wrong:
            raise refusal(wrong, body) from None


def refusal(found: Sequence[ErrorDetails], body: Mapping[str, Any]) -> RequestValidationError:
    return RequestValidationError([{**entry, "loc": ("body", *entry["loc"])} for entry in found], body=body)


def unflattened(fields: Mapping[str, str]) -> dict[str, Any]:
    """Forms have no objects: `{"expires_after": {"anchor": ...}}` is written `expires_after[anchor]`."""
    body: dict[str, Any] = dict(fields)
    inner = {name: body.pop(flat) for name, flat in EXPIRES_AFTER.items() if flat in body}
    return {**body, "expires_after": inner} if inner else body


@router.get("", operation_id="listFiles", responses=documented(400, 404, 500, 503))
async def list_files(
    caller: CallerDep,
    rag: RagDep,
    purpose: Annotated[Purpose | None, Query(description="Only files of this purpose.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000), InDigits] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> ListObject[FileObject]:
    """The files, newest first; of one purpose where it is named."""
    page = await rag.files.list(caller, PageRequest(limit, order, after), purpose)
    return list_object(page, file_object)


@router.get("/{file_id}", operation_id="retrieveFile", responses=documented(404, 500, 503))
async def retrieve_file(file_id: str, caller: CallerDep, rag: RagDep) -> FileObject:
    """What is known of the file; its bytes are at `/content`."""
    return file_object(await rag.files.get(caller, file_id))


@router.delete("/{file_id}", operation_id="deleteFile", responses=documented(404, 500, 503))
async def delete_file(file_id: str, caller: CallerDep, rag: RagDep) -> DeletedFile:
    """Remove the file, from every vector store too."""
    await rag.files.delete(caller, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


CONTENT_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
    for status, description in ((200, "The file's bytes."), (206, "The bytes of the range asked for."))
}


@router.get(
    "/{file_id}/content",
    operation_id="downloadFile",
    response_class=Response,
    responses=CONTENT_RESPONSES | documented(404, 416, 500, 503),
)
async def download_file(file_id: str, request: Request, caller: CallerDep, rag: RagDep) -> Response:
    """The bytes as they were uploaded; one range can be asked for."""
    file = await rag.files.get(caller, file_id)
    span = byte_range(request.headers.get("range"), file.bytes)
    if span is not None and span[0] >= span[1]:
        body = http_errors.envelope("The range lies outside of the file.", http_errors.INVALID_REQUEST)
        return JSONResponse(body, 416, {"content-range": f"bytes */{file.bytes}"})
    start, end = span or (0, file.bytes)
    file, pieces = await rag.files.content(caller, file_id, start, end)
    # The first piece is read before the status is sent, so that bytes that cannot be had are a proper error.
    first = await anext(pieces, b"")
    headers = content_headers(file) | {"content-length": str(end - start)}
    if span is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    return StreamingResponse(
        preceded(first, pieces), 206 if span else 200, headers, "application/octet-stream"
    )


def content_headers(file: StoredFile) -> dict[str, str]:
    return {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "etag": f'"{file.sha256}"',
        "x-content-type-options": "nosniff",
    }


async def preceded(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """`start, end` of a `Range` header (RFC 9110, section 14.1.2), end exclusive; empty: cannot be satisfied.

    `None`: send everything, since there is no range, more than one, or one that is malformed.
    """
    match = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", header or "")
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last) + 1, size) if last else size
