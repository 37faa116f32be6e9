"""Whatever a model says, the events come in the order that clients rely on, and end with the answer."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.data.check_response import stream_violations, violations

from sherlock.rag.domain.errors import ChatModelUnavailable, InvalidRequest
from sherlock.rag.domain.models import (
    DEFAULT_WORKSPACE,
    AnswerEvent,
    Candidate,
    Citation,
    Citations,
    Done,
    Finished,
    RefusalDelta,
    Result,
    Retrieval,
    Retrieved,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from sherlock.response_object_schemas import LOGPROBS, RESULTS, response_object
from sherlock.response_schemas import CreateResponseRequest
from sherlock.response_writer import ResponseWriter

FOUND = Candidate(1, "vs_1", "file-1", "a.txt", {"year": 2024.0}, 0, "text", 0, 4, None, None, 0.5, 0.5)
CITATION = Citation(0, 3, "file-1", "a.txt", "vs_1", 0, "text", 0, None, 0.5)
TOKEN = {"token": "a", "logprob": -0.1, "bytes": None, "top_logprobs": []}


def writer(**body: Any) -> ResponseWriter:
    asked = CreateResponseRequest.model_validate({"input": "hello", **body})
    return ResponseWriter(asked.echo("m", 5, 0.7, stores=True), asked.included)


def written(writer: ResponseWriter, events: list[AnswerEvent]) -> list[Any]:
    return [*writer.begin(), *(piece for event in events for piece in writer.write(event))]


def check(events: list[Any]) -> None:
    found = stream_violations("POST", "/responses", [(event["type"], event) for event in events])
    assert not found, found


retrievals = st.sampled_from(
    [
        Retrieval((), ()),
        Retrieval(("q",), (Result(FOUND, 0.5, 0.5),), ("embed", "dense"), timings_ms={"embed": 1.0}),
        Retrieval(("q",), (), degraded=("retrieve: The database is unavailable.",)),
    ]
)
pieces = st.one_of(
    st.builds(TextDelta, st.text(), logprobs=st.none() | st.just({"content": [TOKEN], "refusal": None})),
    st.builds(RefusalDelta, st.text()),
    st.builds(
        ToolCallDelta, st.integers(0, 3), st.none() | st.text(min_size=1), st.none() | st.text(), st.text()
    ),
)
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "function_call"])
includes = st.lists(st.sampled_from([RESULTS, LOGPROBS, "else"]), unique=True)


@settings(deadline=None, max_examples=150)
@given(st.none() | retrievals, st.lists(pieces, max_size=12), st.booleans(), reasons, includes)
def test_any_answer(
    retrieval: Retrieval | None, said: list[Any], cited: bool, reason: Any, include: list[str]
) -> None:
    made = writer(include=include)
    answer: list[AnswerEvent] = [*said, *([Citations((CITATION,))] if cited else []), Finished(reason)]
    events = written(made, [*([Retrieved(retrieval)] if retrieval else []), *answer, Done(Usage(1, 2))])
    stored = made.stored(DEFAULT_WORKSPACE, ())
    events.append(made.end())
    check(events)
    response = events[-1]["response"]
    assert not violations("POST", "/responses", 200, response)
    done = sorted((e["output_index"], e["item"]) for e in events if e["type"] == "response.output_item.done")
    assert [item for _, item in done] == response["output"]
    for delta, kind in ((TextDelta, "output_text"), (RefusalDelta, "refusal")):
        parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
        text = "".join(part.get("text", part.get("refusal")) for part in parts if part["type"] == kind)
        assert text == "".join(piece.text for piece in said if isinstance(piece, delta))
    shown = response_object(stored, frozenset(include))
    assert shown == response


@settings(deadline=None, max_examples=60)
@given(st.none() | retrievals, st.lists(pieces, min_size=1, max_size=8))
def test_any_answer_that_breaks_off(retrieval: Retrieval | None, said: list[Any]) -> None:
    made = writer()
    events = written(made, [*([Retrieved(retrieval)] if retrieval else []), *said])
    shown = {"message": "It broke off.", "type": "server_error", "param": None, "code": "llm_unavailable"}
    events += made.fail(shown, ChatModelUnavailable("It broke off."))
    check(events)
    failed = events[-1]["response"]
    assert (failed["status"], failed["store"], "usage" in failed) == ("failed", False, False)
    assert {item["status"] for item in failed["output"]} <= {"completed", "failed", "incomplete"}
    assert not violations("POST", "/responses", 200, failed)


@pytest.mark.parametrize(
    ("error", "code"), [(None, "server_error"), (InvalidRequest("No."), "invalid_prompt")]
)
def test_the_code_of_a_failure(error: Any, code: str) -> None:
    made = writer()
    *_, last = [*made.begin(), *made.fail({"message": "No.", "param": None, "code": None}, error)]
    assert last["response"]["error"] == {"code": code, "message": "No."}  # type: ignore[typeddict-item]


def test_a_search_that_is_down_is_no_search_that_found_nothing() -> None:
    for degraded, stages, status in (
        (("retrieve: down",), (), "failed"),
        (("rerank: late",), ("dense",), "completed"),
        ((), (), "completed"),
    ):
        made = writer()
        events = written(made, [Retrieved(Retrieval(("q",), (), stages, degraded))])
        assert events[-1]["item"]["status"] == status
        assert ("response.file_search_call.completed" in [e["type"] for e in events]) == (
            status == "completed"
        )


def test_a_response_that_could_not_be_stored_says_so() -> None:
    for retrieval in (None, Retrieval(("q",), (), ("dense",), ("rerank: late",))):
        made = writer()
        written(made, [*([Retrieved(retrieval)] if retrieval else []), TextDelta("a"), Finished("stop")])
        made.not_stored("The database is unavailable.")
        response = made.end()["response"]
        assert response["store"] is False
        degraded = response["sherlock"]["degraded"]
        assert degraded[-1] == "store: The database is unavailable."
        assert degraded[:-1] == (["rerank: late"] if retrieval else [])
