"""The AsyncAPI document (3.0) of the messages, made from their models, as OpenAPI's is from the routes.

`contracts/asyncapi.yaml` holds it as it is published; a test keeps the two equal.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from sherlock import __version__
from sherlock.message_schemas import (
    EXCHANGES,
    INGEST,
    INGEST_STREAM,
    PARKED_SUBJECT,
    PROGRESS_SUBJECT,
    REPLY_TO_HEADER,
    REQUEST_ID_HEADER,
    Exchange,
    Failure,
    IngestProgressEvent,
)

QUEUE_GROUP = "sherlock_workers"
"""The default of `SHERLOCK_NATS_QUEUE_GROUP`."""

DESCRIPTION = f"""\
Requests reach one Sherlock of the queue group `{QUEUE_GROUP}`. Search, embed and chat are core NATS: a \
request with a reply inbox is answered there and on the result subject, one without on the result subject. \
Every result echoes `request_id` and the ids of its request, and has `error`: null, or a sentence that \
says what is wrong. A result that is larger than the server's `max_payload` is replaced by such an error \
(`error_code` `result_too_large`).

Ingest requests are kept in the JetStream stream `{INGEST_STREAM}` until they are taken: one published \
while no Sherlock runs is done when one starts. The reply to the request is JetStream's own \
acknowledgement; the result goes to the result subject and to the subject named in the header \
`{REPLY_TO_HEADER}`. Results of ingests come at least once, a repeated one with the same `Nats-Msg-Id`. A \
request that can never be done is answered with an error, and kept in the stream `{INGEST_STREAM}_PARKED` \
with the reason.

With RAG off every subject below `sherlock.v1.rag` answers `error_code` `rag_disabled`."""

CORRELATION: Mapping[str, Any] = {
    REQUEST_ID_HEADER: {
        "type": "string",
        "description": "Used where the payload has no `request_id`; comes back.",
    },
    "traceparent": {"type": "string", "description": "W3C Trace Context; comes back."},
}


def document() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for exchange in EXCHANGES:
        _add_exchange(exchange, channels, operations, messages, schemas)
    _add_ingest_events(channels, operations, messages, schemas)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Sherlock", "version": __version__, "description": DESCRIPTION},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": dict(sorted(schemas.items()))},
    }


def _add_exchange(
    exchange: Exchange,
    channels: dict[str, Any],
    operations: dict[str, Any],
    messages: dict[str, Any],
    schemas: dict[str, Any],
) -> None:
    request, result = f"{exchange.name}Request", f"{exchange.name}Result"
    headers = dict(CORRELATION)
    if exchange is INGEST:
        headers[REPLY_TO_HEADER] = {"type": "string", "description": "A subject that gets the result, too."}
    messages[request] = _message(request, _schema(exchange.request, schemas), headers)
    answered = _schema(exchange.result, schemas)
    if exchange is not INGEST:
        answered = {"oneOf": [answered, _schema(Failure, schemas)]}
    messages[result] = _message(result, answered, CORRELATION)
    channels[request] = _channel(exchange.request_subject, request)
    channels[result] = _channel(exchange.result_subject, result)
    operations[exchange.name] = {
        "action": "receive",
        "summary": exchange.summary,
        "channel": {"$ref": f"#/channels/{request}"},
        "messages": [{"$ref": f"#/channels/{request}/messages/{request}"}],
        "bindings": {"nats": {"queue": QUEUE_GROUP}},
        "reply": {
            "channel": {"$ref": f"#/channels/{result}"},
            "messages": [{"$ref": f"#/channels/{result}/messages/{result}"}],
        },
    }


def _add_ingest_events(
    channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any], schemas: dict[str, Any]
) -> None:
    messages["ingestProgress"] = _message("ingestProgress", _schema(IngestProgressEvent, schemas), {})
    channels["ingestProgress"] = _channel(f"{PROGRESS_SUBJECT}.{{file_id}}", "ingestProgress") | {
        "parameters": {"file_id": {"description": "The file that is being ingested."}}
    }
    operations["reportIngestProgress"] = _send("ingestProgress", "What every ingest job has come to.")
    parked = {
        "Sherlock-Parked-Reason": {"type": "string"},
        "Sherlock-Stream-Sequence": {"type": "string"},
    }
    messages["ingestParked"] = _message("ingestParked", {"description": "The request as it came."}, parked)
    channels["ingestParked"] = _channel(PARKED_SUBJECT, "ingestParked")
    operations["parkIngest"] = _send(
        "ingestParked", "Requests that can never be done, kept for people to see."
    )


def _message(name: str, payload: Any, headers: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"name": name, "payload": payload}
    if headers:
        message["headers"] = {"type": "object", "properties": dict(headers)}
    return message


def _channel(address: str, message: str) -> dict[str, Any]:
    return {"address": address, "messages": {message: {"$ref": f"#/components/messages/{message}"}}}


def _send(channel: str, summary: str) -> dict[str, Any]:
    return {
        "action": "send",
        "summary": summary,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{channel}"}],
    }


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the shape, which is put among `schemas` with all that it refers to."""
    made = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}", by_alias=False)
    schemas |= made.pop("$defs", {})
    schemas[kind.__name__] = made
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
