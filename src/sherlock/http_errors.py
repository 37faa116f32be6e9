"""Errors as OpenAI's API shows them: one table from domain error to status, `type` and `code`; one envelope.

The envelope is `{"error": {"message", "type", "param", "code"}}`, everywhere: for invalid requests, unknown
routes, wrong methods and faults of our own. Validation answers 400, never FastAPI's 422.
"""

import logging
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import TypedDict

from sherlock.rag.domain import errors
from sherlock.validation_errors import echo, most_specific

log = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
INTERNAL_MESSAGE = "The server had an error while processing your request."

NO_RETRY = {"x-should-retry": "false"}
"""Both official clients retry every 409 and 5xx unless told that it cannot help."""

CLIENT_GONE = 499
"""nginx's status for a request whose client did not wait; only the log sees it."""


# ── the envelope ────────────────────────────────────────────────────────────


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    error: ErrorObject


def envelope(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> ErrorResponse:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# ── domain errors ───────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """How a kind of error is answered; `code` is used where the error itself carries none."""

    status: int
    type: str
    code: str | None = None
    headers: Mapping[str, str] | None = None


STATUSES: Mapping[type[errors.SherlockError], ErrorStatus] = {
    errors.InvalidRequest: ErrorStatus(400, INVALID_REQUEST),
    errors.NotFound: ErrorStatus(404, INVALID_REQUEST),
    errors.Conflict: ErrorStatus(409, INVALID_REQUEST, headers=NO_RETRY),
    errors.UpstreamRejected: ErrorStatus(400, INVALID_REQUEST),
    errors.RagDisabled: ErrorStatus(503, SERVER_ERROR, "rag_disabled"),
    errors.ChatModelNotConfigured: ErrorStatus(503, SERVER_ERROR, "llm_not_configured"),
    errors.DatabaseUnavailable: ErrorStatus(503, SERVER_ERROR, "database_unavailable"),
    errors.QueueFull: ErrorStatus(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.FileStoreUnavailable: ErrorStatus(503, SERVER_ERROR, "storage_unavailable"),
    errors.ReservationLost: ErrorStatus(503, SERVER_ERROR, "storage_unavailable"),
    errors.EmbedderUnavailable: ErrorStatus(503, SERVER_ERROR, "embedder_unavailable"),
    errors.RerankerUnavailable: ErrorStatus(503, SERVER_ERROR, "reranker_unavailable"),
    errors.MessagingUnavailable: ErrorStatus(503, SERVER_ERROR, "messaging_unavailable"),
    errors.ChatModelUnavailable: ErrorStatus(503, SERVER_ERROR, "llm_unavailable"),
    errors.ChatModelRateLimited: ErrorStatus(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.UnsupportedFile: ErrorStatus(400, INVALID_REQUEST, "unsupported_file"),
    errors.InvalidFile: ErrorStatus(400, INVALID_REQUEST, "invalid_file"),
    errors.LeaseLost: ErrorStatus(500, SERVER_ERROR, SERVER_ERROR),
}
"""The nearest class an error descends from decides. A test walks the tree."""


def status_of(error: errors.SherlockError) -> ErrorStatus:
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind]
    return ErrorStatus(500, SERVER_ERROR, SERVER_ERROR)


def error_body(error: errors.SherlockError) -> ErrorResponse:
    """The envelope of a domain error; also the data of a stream's last frame when the answer breaks off."""
    answered = status_of(error)
    request_error = error if isinstance(error, errors.RequestError) else None
    return envelope(
        error.message,
        answered.type,
        param=request_error.param if request_error else None,
        code=(request_error.code if request_error else None) or answered.code,
    )


def internal_error_body() -> ErrorResponse:
    return envelope(INTERNAL_MESSAGE, SERVER_ERROR, code=SERVER_ERROR)


def error_response(error: errors.SherlockError) -> JSONResponse:
    answered = status_of(error)
    body: dict[str, Any] = {**error_body(error)}
    headers = dict(answered.headers or {})
    if answered.status == 503 and not error.transient:
        headers |= NO_RETRY
    if isinstance(error, errors.RagDisabled):
        body["detail"] = error.message  # part of the gate's promise; older clients read it
    if isinstance(error, errors.ChatModelRateLimited | errors.QueueFull) and error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(body, answered.status, headers)


# ── installation ────────────────────────────────────────────────────────────


async def on_sherlock_error(_: Request, error: errors.SherlockError) -> JSONResponse:
    return error_response(error)


async def on_validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
    found = most_specific(error.errors(), error.body)
    return JSONResponse(envelope(found.message, INVALID_REQUEST, param=found.param, code=found.code), 400)


async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
    """Routing failures, and bodies that could not be read."""
    if error.status_code == 404:
        message = f"Invalid URL ({request.method} {echo(request.url.path, quoted=False)})"
    elif error.status_code == 405:
        message = f"Not allowed to {request.method} on {echo(request.url.path, quoted=False)}."
    elif error.status_code == 400:
        message = "We could not parse the body of your request."
    elif error.status_code == 413:
        message = error.detail  # of `body_limit`
    else:
        message = f"{HTTPStatus(error.status_code).phrase}."
    kind = SERVER_ERROR if error.status_code >= 500 else INVALID_REQUEST
    return JSONResponse(envelope(message, kind), error.status_code, error.headers)


class InternalErrors:
    """Turns what nobody expected into a 500 without internals.

    Logged are the kind of the exception and where it was raised, not its text, which may hold anything. Once
    the answer has begun the connection is broken off, so that half an answer cannot pass for a whole one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watch(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except ClientDisconnect:  # while its body was read; nobody is left to be answered
            await Response(status_code=CLIENT_GONE)(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            log_unexpected(error)
            if begun:
                raise AnswerBrokenOff from None
            await JSONResponse(internal_error_body(), 500)(scope, receive, send)


class AnswerBrokenOff(Exception):
    """The server closes the connection on it; the reason is in the log already."""


def log_unexpected(error: BaseException) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    found: dict[str, Any] = {
        "error": type(error).__name__,
        "raised_at": [f"{frame.name}:{frame.lineno}" for frame in frames[-8:]],
    }
    if isinstance(error, errors.SherlockError):
        found["reason"] = error.message  # a plain sentence
    log.error("internal error", extra=found)


def install(app: FastAPI) -> None:
    app.exception_handler(errors.SherlockError)(on_sherlock_error)
    app.exception_handler(RequestValidationError)(on_validation_error)
    app.exception_handler(HTTPException)(on_http_exception)
    app.add_middleware(InternalErrors)


DESCRIPTIONS = {
    400: "The request is wrong; `param` names the field.",
    403: "Nobody may do this.",
    404: "No such object.",
    409: "The request contradicts what is stored.",
    413: "The body is too large.",
    416: "The range lies outside of the file.",
    429: "Try again later; `retry-after` says when, where that is known.",
    500: "A fault of the server.",
    503: "A part that is needed is off or does not answer.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the error envelope for each status, and for every other one."""
    return {
        **{status: {"model": ErrorResponse, "description": DESCRIPTIONS[status]} for status in statuses},
        "default": {"model": ErrorResponse, "description": "Any other error."},
    }
