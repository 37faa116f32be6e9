"""Errors as OpenAI's API shows them: one table from domain error to status, `type` and `code`; one envelope.

The envelope is `{"error": {"message", "type", "param", "code"}}`, everywhere: for invalid requests, unknown
routes, wrong methods and faults of our own. Validation answers 400, never FastAPI's 422.
"""

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import TypedDict

from sherlock.rag.domain import errors

log = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
INTERNAL_MESSAGE = "The server had an error while processing your request."

NO_RETRY = {"x-should-retry": "false"}
"""Both official clients retry every 409 and 5xx unless told that it cannot help."""

ECHOED_CHARS = 64
"""Longest piece of a refused value that a message repeats."""


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
class Answer:
    """How a kind of error is answered; `code` is used where the error itself carries none."""

    status: int
    type: str
    code: str | None = None
    headers: Mapping[str, str] | None = None


ANSWERS: Mapping[type[errors.SherlockError], Answer] = {
    errors.InvalidRequest: Answer(400, INVALID_REQUEST),
    errors.NotFound: Answer(404, INVALID_REQUEST),
    errors.Conflict: Answer(409, INVALID_REQUEST, headers=NO_RETRY),
    errors.UpstreamRejected: Answer(400, INVALID_REQUEST),
    errors.RagDisabled: Answer(503, SERVER_ERROR, "rag_disabled", NO_RETRY),
    errors.ChatModelNotConfigured: Answer(503, SERVER_ERROR, "llm_not_configured", NO_RETRY),
    errors.DatabaseUnavailable: Answer(503, SERVER_ERROR, "database_unavailable"),
    errors.FileStoreUnavailable: Answer(503, SERVER_ERROR, "storage_unavailable"),
    errors.EmbedderUnavailable: Answer(503, SERVER_ERROR, "embedder_unavailable"),
    errors.RerankerUnavailable: Answer(503, SERVER_ERROR, "reranker_unavailable"),
    errors.ChatModelUnavailable: Answer(503, SERVER_ERROR, "llm_unavailable"),
    errors.ChatModelRateLimited: Answer(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.UnsupportedFile: Answer(400, INVALID_REQUEST, "unsupported_file"),
    errors.InvalidFile: Answer(400, INVALID_REQUEST, "invalid_file"),
    errors.LeaseLost: Answer(500, SERVER_ERROR, SERVER_ERROR),
}
"""The nearest class an error descends from decides. A test walks the tree."""


def answer_to(error: errors.SherlockError) -> Answer:
    for kind in type(error).__mro__:
        if kind in ANSWERS:
            return ANSWERS[kind]
    return Answer(500, SERVER_ERROR, SERVER_ERROR)


def error_body(error: errors.SherlockError) -> ErrorResponse:
    """The envelope of a domain error; also the data of a stream's last frame when the answer breaks off."""
    answer = answer_to(error)
    request_error = error if isinstance(error, errors.RequestError) else None
    return envelope(
        error.message,
        answer.type,
        param=request_error.param if request_error else None,
        code=(request_error.code if request_error else None) or answer.code,
    )


def internal_error_body() -> ErrorResponse:
    return envelope(INTERNAL_MESSAGE, SERVER_ERROR, code=SERVER_ERROR)


def error_response(error: errors.SherlockError) -> JSONResponse:
    answer = answer_to(error)
    body: dict[str, Any] = {**error_body(error)}
    headers = dict(answer.headers or {})
    if isinstance(error, errors.RagDisabled):
        body["detail"] = error.message  # part of the gate's promise; older clients read it
    if isinstance(error, errors.ChatModelRateLimited) and error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(body, answer.status, headers)


# ── validation ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request, in OpenAI's words."""

    message: str
    param: str | None
    code: str | None


TYPE_NAMES = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "list_type": "an array of values",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
BOUNDS = {
    "less_than_equal": ("above maximum", "<=", "le"),
    "greater_than_equal": ("below minimum", ">=", "ge"),
    "less_than": ("above maximum", "<", "lt"),
    "greater_than": ("below minimum", ">", "gt"),
}
LENGTHS = {
    "string_too_long": ("string", "long", "above_max_length"),
    "string_too_short": ("string", "short", "below_min_length"),
    "too_long": ("array", "long", "above_max_length"),
    "too_short": ("array", "short", "below_min_length"),
}


def fault(error: Mapping[str, Any], body: Any) -> Fault:
    """OpenAI's message and code for one of pydantic's errors about `body`."""
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "json_invalid":
        return Fault("We could not parse the JSON body of your request.", None, None)
    param = parameter(error["loc"], body, missing=kind == "missing")
    if param is None:
        return Fault("The body must be a JSON object, sent with content type application/json.", None, None)
    if kind == "missing":
        return Fault(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if kind == "extra_forbidden":
        return Fault(f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    if kind in TYPE_NAMES:
        return Fault(
            f"Invalid type for '{param}': expected {TYPE_NAMES[kind]}, but got {described(value)} instead.",
            param,
            "invalid_type",
        )
    if kind in ("literal_error", "union_tag_invalid"):
        wanted = context.get("expected") or context.get("expected_tags")
        found = context.get("tag", value)
        return Fault(
            f"Invalid value for '{param}': {echo(found)}. Supported values are: {wanted}.",
            param,
            "invalid_value",
        )
    if kind == "union_tag_not_found":
        tag = str(context.get("discriminator", "type")).strip("'")
        return Fault(
            f"Missing required parameter: '{param}.{tag}'.", f"{param}.{tag}", "missing_required_parameter"
        )
    if kind in BOUNDS:
        side, sign, key = BOUNDS[kind]
        number = "integer" if isinstance(value, int | str) else "decimal"
        code = f"{number}_{side.replace('imum', '').replace(' ', '_')}_value"
        return Fault(
            f"Invalid '{param}': {number} {side} value. "
            f"Expected a value {sign} {context[key]}, but got {echo(value, quoted=False)} instead.",
            param,
            code,
        )
    if kind in LENGTHS:
        what, side, code = LENGTHS[kind]
        if isinstance(value, Mapping):
            what = "object"
        limit = context.get("max_length", context.get("min_length"))
        bound = "maximum" if side == "long" else "minimum"
        return Fault(
            f"Invalid '{param}': {what} too {side}. "
            f"Expected {article(what)} with {bound} length {limit}, but got {len(value or ())} instead.",
            param,
            f"{what}_{code}",
        )
    return Fault(
        f"Invalid '{param}': {plain(str(error['msg']))}", context.get("param", param), "invalid_value"
    )


def telling(found: Sequence[Mapping[str, Any]], body: Any) -> Fault:
    """The fault to report. Of a union every branch complains: the one that got furthest was meant."""

    def reach(error: Mapping[str, Any]) -> tuple[bool, int]:
        name = parameter(error["loc"], body, missing=False) or ""
        return error["type"] not in TYPE_NAMES, name.count(".") + name.count("[")

    return fault(max(found, key=reach), body)


def parameter(loc: Sequence[str | int], body: Any, *, missing: bool) -> str | None:
    """The field an error is about, written `filters.filters[0].key`; `None`: the body as a whole.

    pydantic's location names the branches of unions too; what is not found in the body is left out.
    """
    source, *steps = loc
    if steps and steps[-1] == "[key]":  # a map's key, not its value, is wrong
        steps = steps[:-2]
    if source != "body":
        return str(steps[0]).removesuffix("[]") if steps else None
    name, value = "", body
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            name, value = f"{name}[{step}]", value[step]
        elif isinstance(value, Mapping) and step in value:
            name, value = f"{name}.{step}".removeprefix("."), value[step]
        elif last and missing:
            name = f"{name}.{step}".removeprefix(".")
    return name or None


def described(value: Any) -> str:
    """The JSON type of a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "a string"), (int, "an integer"), (float, "a decimal"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return "an object"


def echo(value: Any, *, quoted: bool = True) -> str:
    text = str(value)[:ECHOED_CHARS] if isinstance(value, str | int | float) else described(value)
    return f"'{text}'" if quoted and isinstance(value, str) else text


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def plain(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message if message.endswith(".") else f"{message}."


# ── installation ────────────────────────────────────────────────────────────


async def on_sherlock_error(_: Request, error: errors.SherlockError) -> JSONResponse:
    return error_response(error)


async def on_validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
    found = telling(error.errors(), error.body)
    return JSONResponse(envelope(found.message, INVALID_REQUEST, param=found.param, code=found.code), 400)


async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
    """Routing failures, and bodies that could not be read."""
    if error.status_code == 404:
        message = f"Invalid URL ({request.method} {echo(request.url.path, quoted=False)})"
    elif error.status_code == 405:
        message = f"Not allowed to {request.method} on {echo(request.url.path, quoted=False)}."
    elif error.status_code == 400:
        message = "We could not parse the body of your request."
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
    log.error(
        "internal error",
        extra={
            "error": type(error).__name__,
            "raised_at": [f"{frame.name}:{frame.lineno}" for frame in frames[-8:]],
        },
    )


def install(app: FastAPI) -> None:
    app.exception_handler(errors.SherlockError)(on_sherlock_error)
    app.exception_handler(RequestValidationError)(on_validation_error)
    app.exception_handler(HTTPException)(on_http_exception)
    app.add_middleware(InternalErrors)


DESCRIPTIONS = {
    400: "The request is wrong; `param` names the field.",
    404: "No such object.",
    409: "The request contradicts what is stored.",
    416: "The range lies outside of the file.",
    429: "The language model server asks to wait.",
    500: "A fault of the server.",
    503: "A part that is needed is off or does not answer.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the error envelope for each status, and for every other one."""
    return {
        **{status: {"model": ErrorResponse, "description": DESCRIPTIONS[status]} for status in statuses},
        "default": {"model": ErrorResponse, "description": "Any other error."},
    }
