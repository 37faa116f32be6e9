"""The table of errors, and OpenAI's words for what pydantic finds."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from sherlock import http_errors, validation_errors
from sherlock.observability import JsonFormatter
from sherlock.rag.domain import errors
from sherlock.search_schemas import SearchRequest


def tree(kind: type[errors.SherlockError]) -> list[type[errors.SherlockError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


DOMAIN = {kind for kind in tree(errors.SherlockError) if kind.__module__ == errors.__name__}
LEAVES = [
    kind for kind in sorted(DOMAIN, key=lambda kind: kind.__name__) if not set(kind.__subclasses__()) & DOMAIN
]
MADE: dict[type[errors.SherlockError], tuple[Any, ...]] = {
    errors.UnsupportedFileType: ("a.xyz",),
    errors.FileTooLarge: (10,),
    errors.UploadNotPending: ("completed",),
    errors.NotFound: ("File", "file-1"),
    errors.ModelNotFound: ("m",),
    errors.RagDisabled: (),
    errors.ChatModelNotConfigured: (),
}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_error_has_an_answer(kind: type[errors.SherlockError]) -> None:
    error = kind(*MADE.get(kind, ("A plain sentence.",)))
    assert any(issubclass(kind, known) for known in http_errors.STATUSES), "falls through to a plain 500"
    answer = http_errors.error_response(error)
    shown = json.loads(bytes(answer.body))["error"]
    assert shown["message"] == error.message
    client_error = isinstance(error, errors.RequestError | errors.IngestError)
    asks_to_wait = kind in (errors.ChatModelRateLimited, errors.QueueFull)
    assert (answer.status_code < 500) == (client_error or asks_to_wait)
    assert (shown["type"] == "server_error") == (answer.status_code >= 500)
    if error.transient:
        assert answer.status_code in (429, 503)
        assert "x-should-retry" not in answer.headers
    elif answer.status_code in (409, 503):
        assert answer.headers["x-should-retry"] == "false", "clients would repeat it in vain"


def test_a_full_queue_says_when_to_come_back() -> None:
    answer = http_errors.error_response(errors.QueueFull(retry_after_s=4.2))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")


def test_the_nearest_class_decides() -> None:
    class Peculiar(errors.FileTooLarge):
        pass

    assert http_errors.status_of(Peculiar(5)).status == 400
    assert http_errors.status_of(errors.ModelNotFound("m")).status == 404
    assert http_errors.status_of(errors.SherlockError("Something.")).status == 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["query", "filters", "ranking_options", "max_num_results", "hybrid_alpha", "other"])


@settings(deadline=None)
@given(st.dictionaries(FIELDS, JSON))
def test_any_fault_has_a_message_that_names_a_field_of_the_request(body: dict[str, Any]) -> None:
    try:
        SearchRequest.model_validate(body)
    except ValidationError as error:
        found = [{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors()]
        fault = validation_errors.most_specific(found, body)
        assert fault.message.endswith(".")
        assert fault.param is not None
        assert fault.param.split(".")[0].split("[")[0] in {*body, "query"}
        assert fault.code


async def test_a_client_that_goes_while_it_sends_is_no_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async for _ in Request(scope, receive).stream():
            pass

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": []}
    await http_errors.InternalErrors(app)(scope, gone, send)
    assert sent[0]["status"] == http_errors.CLIENT_GONE
    assert not caplog.records


def test_long_values_are_not_repeated() -> None:
    secret = "x" * 500
    error = {"type": "literal_error", "loc": ("body", "type"), "input": secret, "ctx": {"expected": "'a'"}}
    assert len(validation_errors.fault(error, {"type": secret}).message) < 150


def test_what_was_not_expected_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        try:
            raise KeyError("the text of a document")
        except KeyError as error:
            http_errors.log_unexpected(error)
        logging.getLogger("sherlock").error("failed", exc_info=ValueError("the text of a document"))
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert [json.loads(line)["error"] for line in lines] == ["KeyError", "ValueError"]
    assert not any("document" in line for line in lines)
