"""Events of an answer -> events of the Responses API, in the order that both official stream helpers rely on.

The plain answer is the `response` of the last event: there is no second way to make it.
"""

import copy
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sherlock.rag.domain.errors import ChatModelRateLimited, RequestError, SherlockError
from sherlock.rag.domain.models import (
    AnswerEvent,
    Citation,
    Citations,
    Done,
    Finished,
    RefusalDelta,
    ResponseItem,
    Result,
    Retrieval,
    Retrieved,
    StoredResponse,
    TextDelta,
    ToolCallDelta,
    Usage,
    WorkspaceId,
)
from sherlock.response_item_schemas import new_id
from sherlock.response_object_schemas import LOGPROBS, ResponseStreamEvent, ResponseUsage, item_object
from sherlock.search_schemas import cited_passage, grounding_object

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
MARKS = "[【"


class ResponseWriter:
    """Of one response. `echo` are the members that repeat the request, `include` what else is shown.

    An item is opened when its first piece comes, and closed when the answer is finished: citations come last.
    """

    def __init__(self, echo: Mapping[str, Any], include: Collection[str]) -> None:
        self.id = new_id("resp")
        self.created_at = int(time.time())
        self.begun = False
        """Whether the model has written something."""
        self.retrieval: Retrieval | None = None
        self._grounded = False
        self._echo = dict(echo)
        self._include = include
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._message: dict[str, Any] | None = None
        self._pieces: list[str] = []
        """Of the text of the message's last part, which gets it as a whole: adding up would be quadratic."""
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Usage | None = None
        self._done_at: int | None = None
        self._reason: str | None = None
        self._not_stored: str | None = None

    # ── events ──────────────────────────────────────────────────────────────

    def begin(self) -> Iterator[ResponseStreamEvent]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def write(self, event: AnswerEvent) -> Iterator[ResponseStreamEvent]:
        if isinstance(event, Retrieved):
            yield from self._searched(event.retrieval)
            return
        self.begun = True
        if isinstance(event, TextDelta):
            yield from self._text(event)
        elif isinstance(event, RefusalDelta):
            yield from self._refusal(event)
        elif isinstance(event, ToolCallDelta):
            yield from self._call(event)
        elif isinstance(event, Citations):
            yield from self._cited(event.citations)
        elif isinstance(event, Finished):
            yield from self._finished(event)
        elif isinstance(event, Done):
            self._usage = event.usage
            self._done_at = int(time.time())

    def not_stored(self, reason: str) -> None:
        """The response could not be stored; it says so itself."""
        self._not_stored = reason

    def end(self) -> ResponseStreamEvent:
        """The last event of an answer that did not fail."""
        return self._event(f"response.{self._status}", response=self._response(self._status))

    def fail(
        self, shown: Mapping[str, object], error: SherlockError | None = None
    ) -> Iterator[ResponseStreamEvent]:
        """The last events of an answer that broke off: one for either way in which clients notice.

        `shown` is the error as the envelope has it; without an `error` it was a fault of our own.
        """
        yield self._event("error", **{name: shown[name] for name in ("code", "message", "param")})
        self._settle()
        for item in self._output:
            if item["status"] == "in_progress":
                item["status"] = "incomplete"
        self._echo["store"] = False
        failed = self._response("failed")
        failed["error"] = {"code": failure_code(error), "message": shown["message"]}
        yield self._event("response.failed", response=failed)

    # ── the response ────────────────────────────────────────────────────────

    def stored(self, workspace_id: WorkspaceId, input: tuple[ResponseItem, ...]) -> StoredResponse:
        """What is to be kept, results and all."""
        body = self._response(self._status)
        del body["output"]
        return StoredResponse(
            id=self.id,
            workspace_id=workspace_id,
            created_at=self.created_at,
            previous_id=self._echo["previous_response_id"],
            body=body,
            input=input,
            output=tuple(copy.deepcopy(self._output)),
        )

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason in INCOMPLETE else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        response: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": self._done_at if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": INCOMPLETE[self._reason or ""]}
            if status == "incomplete"
            else None,
            "output": [self._shown(item) for item in self._output],
            **self._echo,
        }
        if self._usage is not None:
            response["usage"] = usage_object(self._usage)
        retrieval = self.retrieval
        if self._not_stored is not None:
            response["store"] = False
            known = retrieval or Retrieval((), ())
            degraded = (*known.degraded, f"store: {self._not_stored}")
            retrieval = Retrieval((), (), known.stages, degraded, known.timings_ms)
        if retrieval is not None:
            response["sherlock"] = grounding_object(retrieval, grounded=self._grounded)
        return response

    # ── items ───────────────────────────────────────────────────────────────

    def _searched(self, retrieval: Retrieval) -> Iterator[ResponseStreamEvent]:
        self.retrieval = retrieval
        item = self._add({"id": new_id("fs"), "type": "file_search_call", "queries": [], "results": None})
        yield self._opened(item)
        for state in ("in_progress", "searching"):
            yield self._of(item, f"response.file_search_call.{state}")
        item["queries"] = list(retrieval.queries)
        if retrieval.degraded and not retrieval.stages:  # it could not be done at all
            item["status"] = "failed"
        else:
            item["status"] = "completed"
            item["results"] = [result_object(result) for result in retrieval.results]
            yield self._of(item, "response.file_search_call.completed")
        yield self._closed(item)

    def _text(self, event: TextDelta) -> Iterator[ResponseStreamEvent]:
        yield from self._part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        message, part, index = self._open_part()
        self._pieces.append(event.text)
        logprobs = [logprob(entry) for entry in (event.logprobs or {}).get("content") or ()]
        part["logprobs"] += logprobs
        yield self._of(
            message,
            "response.output_text.delta",
            content_index=index,
            delta=event.text,
            logprobs=logprobs if LOGPROBS in self._include else [],
        )

    def _refusal(self, event: RefusalDelta) -> Iterator[ResponseStreamEvent]:
        yield from self._part({"type": "refusal", "refusal": ""})
        message, _, index = self._open_part()
        self._pieces.append(event.text)
        yield self._of(message, "response.refusal.delta", content_index=index, delta=event.text)

    def _call(self, event: ToolCallDelta) -> Iterator[ResponseStreamEvent]:
        if event.index not in self._calls:
            call = {
                "id": new_id("fc"),
                "type": "function_call",
                "call_id": event.id or new_id("call"),
                "name": event.name or "",
                "arguments": "",
            }
            self._calls[event.index] = self._add(call)
            yield self._opened(call)
        call = self._calls[event.index]
        if event.arguments:
            call["arguments"] += event.arguments
            yield self._of(call, "response.function_call_arguments.delta", delta=event.arguments)

    def _cited(self, citations: tuple[Citation, ...]) -> Iterator[ResponseStreamEvent]:
        """Citations are of the text as a whole, which is the first part of its kind."""
        if self._message is None:
            return
        self._settle()
        texts = [n for n, part in enumerate(self._message["content"]) if part["type"] == "output_text"]
        for index in texts[:1]:
            self._grounded = self._grounded or bool(citations)
            part = self._message["content"][index]
            for citation in citations:
                entry = annotation(citation, part["text"])
                part["annotations"].append(entry)
                yield self._of(
                    self._message,
                    "response.output_text.annotation.added",
                    content_index=index,
                    annotation_index=len(part["annotations"]) - 1,
                    annotation=entry,
                )

    def _finished(self, event: Finished) -> Iterator[ResponseStreamEvent]:
        self._reason = event.reason
        self._settle()
        if self._message is None and not self._calls:  # an empty answer is one, too
            yield from self._part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        for item in self._output:
            if item["status"] == "in_progress":
                yield from self._done(item)

    def _done(self, item: dict[str, Any]) -> Iterator[ResponseStreamEvent]:
        item["status"] = self._status
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of(item, "response.function_call_arguments.done", **done)
        else:
            for index, part in enumerate(self._shown(item)["content"]):
                if part["type"] == "output_text":
                    kind, text = "output_text", {"text": part["text"], "logprobs": part["logprobs"]}
                else:
                    kind, text = "refusal", {"refusal": part["refusal"]}
                yield self._of(item, f"response.{kind}.done", content_index=index, **text)
                yield self._of(item, "response.content_part.done", content_index=index, part=part)
        yield self._closed(item)

    def _part(self, part: dict[str, Any]) -> Iterator[ResponseStreamEvent]:
        """Open the message and a part of this type in it, unless they are open."""
        if self._message is None:
            message = {"id": new_id("msg"), "type": "message", "role": "assistant", "content": []}
            self._message = self._add(message)
            yield self._opened(message)
        content = self._message["content"]
        if not content or content[-1]["type"] != part["type"]:
            self._settle()
            self._pieces = []
            content.append(part)
            yield self._of(
                self._message, "response.content_part.added", content_index=len(content) - 1, part=part
            )

    def _settle(self) -> None:
        """Give the part that is being written its text so far."""
        if self._message is not None and (content := self._message["content"]):
            name = "text" if content[-1]["type"] == "output_text" else "refusal"
            content[-1][name] = "".join(self._pieces)

    def _open_part(self) -> tuple[dict[str, Any], dict[str, Any], int]:
        """The message, the part that is being written, and its index."""
        assert self._message is not None  # noqa: S101 - `_part` has opened it
        content = self._message["content"]
        return self._message, content[-1], len(content) - 1

    # ── frames ──────────────────────────────────────────────────────────────

    def _add(self, item: dict[str, Any]) -> dict[str, Any]:
        item["status"] = "in_progress"
        self._output.append(item)
        return item

    def _opened(self, item: dict[str, Any]) -> ResponseStreamEvent:
        return self._event(
            "response.output_item.added", output_index=self._place(item), item=self._shown(item)
        )

    def _closed(self, item: dict[str, Any]) -> ResponseStreamEvent:
        return self._event(
            "response.output_item.done", output_index=self._place(item), item=self._shown(item)
        )

    def _of(self, item: dict[str, Any], kind: str, **members: Any) -> ResponseStreamEvent:
        return self._event(kind, item_id=item["id"], output_index=self._place(item), **members)

    def _event(self, kind: str, **members: Any) -> ResponseStreamEvent:
        """Events are values: what is written later does not change them."""
        event: Any = {"type": kind, "sequence_number": self._sequence, **copy.deepcopy(members)}
        self._sequence += 1
        return event  # type: ignore[no-any-return]

    def _place(self, item: dict[str, Any]) -> int:
        return next(place for place, other in enumerate(self._output) if other is item)

    def _shown(self, item: dict[str, Any]) -> dict[str, Any]:
        return item_object(item, self._include)


# ── members ─────────────────────────────────────────────────────────────────


def result_object(result: Result) -> dict[str, Any]:
    found = result.candidate
    return {
        "file_id": found.file_id,
        "filename": found.filename,
        "text": found.text,
        "score": result.score,
        "attributes": dict(found.attributes or {}),
        "vector_store_id": found.vector_store_id,
        "chunk_index": found.chunk_index,
        "page": found.page,
    }


def annotation(citation: Citation, text: str) -> dict[str, Any]:
    """OpenAI's four members, and what Sherlock knows besides.

    `index` is where in the text, in code points, the mark stands; of a statement without one, its end.
    """
    marked = text[citation.start : citation.start + 1] in tuple(MARKS)
    return {
        "type": "file_citation",
        "index": citation.start if marked else citation.end,
        **cited_passage(citation),
    }


def logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token's, as chat models write it; bytes are required here, and may be missing there."""
    top = [logprob(other) for other in entry.get("top_logprobs") or ()]
    token = entry["token"]
    shown = {"token": token, "logprob": entry["logprob"], "bytes": entry.get("bytes") or list(token.encode())}
    return shown | ({"top_logprobs": top} if "top_logprobs" in entry else {})


def usage_object(usage: Usage) -> ResponseUsage:
    prompt = usage.details.get("prompt_tokens_details") or {}
    answer = usage.details.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens") or 0,
            "cache_write_tokens": prompt.get("cache_write_tokens") or 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.get("reasoning_tokens") or 0},
        "total_tokens": usage.total_tokens,
    }


def failure_code(error: SherlockError | None) -> str:
    """Of the few that a failed response may have."""
    if isinstance(error, ChatModelRateLimited):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"
