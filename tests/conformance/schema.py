"""What OpenAI's schema has against an exchange, but for what Sherlock does otherwise on purpose."""

import re
from dataclasses import dataclass

from tests.conformance.recording import Exchange
from tests.contract.data.check_response import (
    find_path,
    parse_sse,
    request_violations,
    stream_violations,
    violations,
)


@dataclass(frozen=True)
class Accepted:
    """A difference from the schema that is there on purpose."""

    where: str
    """A regular expression over method and path template, a blank between."""
    fault: str
    """A regular expression over the fault's words."""
    why: str


ACCEPTED = (
    Accepted(
        "^POST /chat/completions$",
        r"^request: \$\.tools\[\d+\]: object tagged type='file_search' fits none",
        "Chat completions take the tool `file_search`, too, in the shape it has in responses.",
    ),
    Accepted(
        "^POST /uploads$",
        r"^request: \$\.purpose: '(user_data|evals)' is not one of",
        "An upload in parts takes the six purposes of a file; the clients know six, the schema four.",
    ),
    Accepted(
        "/files$|/files/{file_id}$",
        r"^\$\.(data\[\d+\]\.)?purpose: 'evals' is not one of",
        "A file uploaded for `evals` says so; the schema takes the purpose and has none to give back.",
    ),
)


def faults(exchange: Exchange) -> list[str]:
    """Of the request's and the response's JSON, of the events of a stream, and of the headers."""
    return [fault for fault, accepted in _judged(exchange) if accepted is None]


def differences(exchange: Exchange) -> set[Accepted]:
    """The accepted differences that occur in it."""
    return {accepted for _, accepted in _judged(exchange) if accepted is not None}


def _judged(exchange: Exchange) -> list[tuple[str, Accepted | None]]:
    template = find_path(exchange.path) or exchange.path
    at = f"{exchange.method} {template}"
    return [
        (
            f"{at} {exchange.status}: {fault}",
            next((a for a in ACCEPTED if re.search(a.where, at) and re.search(a.fault, fault)), None),
        )
        for fault in _found(exchange, template)
    ]


def _found(exchange: Exchange, template: str) -> list[str]:
    request, response = exchange.request, exchange.response
    found = [] if "x-request-id" in response.headers else ["no x-request-id"]
    if not response.whole:
        return found  # the client has left
    # What is wrong with a request that was refused is the row's intention.
    if request.media_type == "application/json" and request.body and exchange.status < 400:
        found += [f"request: {f}" for f in request_violations(exchange.method, template, request.json())]
    if response.media_type == "text/event-stream":
        events = parse_sse(response.body.decode())
        return found + stream_violations(exchange.method, template, events)
    if response.media_type == "application/json":
        return found + violations(exchange.method, template, exchange.status, response.json())
    if not template.endswith("/content"):
        found.append(f"the answer is of type {response.media_type!r}")
    return found
