"""One request by message, from its bytes to its result."""

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from sherlock import http_errors
from sherlock.json_body import parsed
from sherlock.message_schemas import (
    EXCHANGES,
    REQUEST_ID_HEADER,
    TRACE_HEADERS,
    Exchange,
    Failure,
    echoed_ids,
    is_id,
)
from sherlock.observability import ACCEPTED_ID
from sherlock.rag import tracing
from sherlock.rag.domain.errors import InvalidRequest, SherlockError
from sherlock.rag.domain.messages import Message, MessageBroker
from sherlock.validation_errors import most_specific

TRACE_VALUE = re.compile(r"[\x21-\x7e]{1,512}")
SUBJECT = re.compile(r"[^\s.*>$][^\s.*>]*(\.[^\s.*>]+)*")
"""A subject without wildcards; those that begin with `$` are the message server's own."""
MAX_SUBJECT_CHARS = 256
OUR_SUBJECTS = frozenset(exchange.request_subject for exchange in EXCHANGES)

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked: what every result to a request repeats."""

    request_id: str
    ids: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Correlation: the request's id and its trace, as headers of the result."""
    when_failed: Mapping[str, Any] = field(default_factory=dict)

    def failure(self, error: SherlockError) -> dict[str, Any]:
        return self._shown(http_errors.error_body(error))

    def fault(self, error: Exception) -> dict[str, Any]:
        """For an error nobody expected, which is logged: its text may hold anything."""
        http_errors.log_unexpected(error)
        return self._shown(http_errors.internal_error_body())

    def _shown(self, body: http_errors.ErrorResponse) -> dict[str, Any]:
        told = body["error"]
        return self.failed(told["message"], told["code"], told["param"])

    def failed(self, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
        failure: Failure = {
            "request_id": self.request_id,
            "error": message,
            "error_code": code,
            "error_param": param,
        }
        return {**self.when_failed, **self.ids, **failure}

    def success(self, members: Mapping[str, Any]) -> dict[str, Any]:
        return {**members, **self.ids, "request_id": self.request_id, "error": None}


def read(data: bytes) -> dict[str, Any]:
    """The payload as JSON. Raises `InvalidRequest`, which quotes nothing of it."""
    try:
        body = parsed(data)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"We could not parse the message as JSON: {error.msg}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The message must be a JSON object.")
    return body


def asked(exchange: Exchange, message: Message, body: Any) -> Asked:
    """Of any message, however wrong; the request's id is the payload's, the header's, or a new one."""
    headers = {name.lower(): value for name, value in message.headers.items()}
    given = body.get("request_id") if isinstance(body, dict) else None
    sent = headers.get(REQUEST_ID_HEADER, "")
    if isinstance(given, str) and is_id(given):
        request_id = given
    else:
        request_id = sent if ACCEPTED_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"
    trace = {name: headers[name] for name in TRACE_HEADERS if TRACE_VALUE.fullmatch(headers.get(name, ""))}
    ids = echoed_ids(exchange.request, body)
    # Inside a span of ours, that is what the result's reader goes on from.
    return Asked(request_id, ids, correlation(request_id) | trace | tracing.headers(), exchange.when_failed)


def correlation(request_id: str) -> dict[str, str]:
    """The header that carries a request's id, where it can be one."""
    return {REQUEST_ID_HEADER: request_id} if ACCEPTED_ID.fullmatch(request_id) else {}


def validated(model: type[Model], body: dict[str, Any]) -> Model:
    """Raises `InvalidRequest` in the words of HTTP."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults = [{**found, "loc": ("body", *found["loc"])} for found in error.errors(include_url=False)]
        found = most_specific(faults, body)
        raise InvalidRequest(found.message, param=found.param, code=found.code) from None


def answerable(subject: str | None) -> bool:
    """Whether a sender may name this subject: neither the server's own ones nor our requests."""
    return (
        subject is not None
        and len(subject) <= MAX_SUBJECT_CHARS
        and SUBJECT.fullmatch(subject) is not None
        and subject not in OUR_SUBJECTS
    )


@dataclass(frozen=True, slots=True)
class Results:
    """Sends results, and never a larger one than the server takes."""

    broker: MessageBroker

    async def send(
        self,
        subjects: Sequence[str],
        asked: Asked,
        result: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Raises `MessagingUnavailable`."""
        # A thousand vectors take a while to be written.
        data = await asyncio.to_thread(to_json, result)
        for subject in subjects:
            message = Message(subject, data, {**asked.headers, **(headers or {})})
            if message.size > (limit := self.broker.max_size):
                told = f"The result is larger than the message server's limit of {limit} bytes."
                failure = asked.failure(InvalidRequest(told, code="result_too_large"))
                message = Message(subject, to_json(failure), message.headers)
            await self.broker.publish(message)
