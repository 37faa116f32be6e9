"""Requests become domain values, domain values become the API's objects."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.contract.data.check_response import violations

from sherlock.chat_schemas import ChatCompletionRequest
from sherlock.embedding_schemas import EmbeddingsRequest
from sherlock.file_schemas import file_object
from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import (
    UNSET,
    ChunkingStrategy,
    Comparison,
    Compound,
    Encoder,
    FileCounts,
    LastError,
    Page,
    ReadingNotes,
    Retrieval,
    SearchOptions,
    StoredFile,
    VectorStore,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.schemas import list_object
from sherlock.search_schemas import SearchRequest, search_results_page, stages_header
from sherlock.vector_store_schemas import (
    AttachFileRequest,
    CreateVectorStoreRequest,
    UpdateVectorStoreRequest,
    chunking_strategy,
    vector_store_file_object,
    vector_store_object,
)

HERE = WorkspaceId("default")
USER = [{"role": "user", "content": "hello"}]


def search(**body: Any) -> SearchRequest:
    return SearchRequest.model_validate({"query": "q", **body})


# ── requests ────────────────────────────────────────────────────────────────


def test_numbers_and_booleans_stay_apart() -> None:
    given_map = {"year": 2024, "ratio": 0.5, "draft": True, "name": "1"}
    read = AttachFileRequest.model_validate({"file_id": "f", "attributes": given_map}).attributes
    assert read == given_map
    assert {key: type(value) for key, value in (read or {}).items()} == {
        "year": float,
        "ratio": float,
        "draft": bool,
        "name": str,
    }


@pytest.mark.parametrize("number", [10**400, float("nan"), float("inf")])
def test_numbers_that_are_none(number: float) -> None:
    with pytest.raises(ValidationError):
        AttachFileRequest.model_validate({"file_id": "f", "attributes": {"a": number}})


def test_search_defaults_and_extensions() -> None:
    plain = search(query=["a", "b"], rewrite_query=True).to_query("vs_1", 0.7)
    assert (plain.texts, plain.options) == (("a", "b"), SearchOptions(limit=10, alpha=0.7, rewrite=True))
    weighted = search(
        ranking_options={"ranker": "none", "hybrid_search": {"embedding_weight": 1, "text_weight": 3}}
    )
    assert weighted.to_query("vs_1", 0.7).options == SearchOptions(limit=10, alpha=0.25, rerank=False)
    assert search(hybrid_alpha=0, top_k=3).to_query("vs_1", 0.7).options.alpha == 0
    assert [search(top_k=3).limit(10), search(top_k=3, max_num_results=4).limit(10)] == [3, 4]


def test_filters_become_the_domains() -> None:
    given_filter = {
        "type": "or",
        "filters": [
            {"type": "gte", "key": "year", "value": 2020},
            {"type": "nin", "key": "lang", "value": ["de", 1, True]},
            {"type": "and", "filters": [{"type": "eq", "key": "draft", "value": False}]},
        ],
    }
    assert search(filters=given_filter).to_query("vs_1", 0.7).options.filter == Compound(
        "or",
        (
            Comparison("gte", "year", 2020.0),
            Comparison("nin", "lang", ("de", 1.0, True)),
            Compound("and", (Comparison("eq", "draft", False),)),
        ),
    )


def test_updates_tell_absent_from_null() -> None:
    changes = UpdateVectorStoreRequest.model_validate({"metadata": None}).to_changes()
    assert (changes.name, changes.metadata, changes.expires_after_days) == (UNSET, None, UNSET)


def test_chunking() -> None:
    def sizes(given_strategy: Any) -> ChunkingStrategy | None:
        body = {"chunking_strategy": given_strategy}
        return chunking_strategy(CreateVectorStoreRequest.model_validate(body).chunking_strategy)

    static = {"max_chunk_size_tokens": 101, "chunk_overlap_tokens": 50}
    assert sizes({"type": "static", "static": static}) == ChunkingStrategy(101, 50)
    assert sizes({"type": "auto"}) is sizes(None) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_one_list_of_integers_is_one_input(tokens: list[int]) -> None:
    assert EmbeddingsRequest.model_validate({"model": "m", "input": tokens}).input == tokens
    with pytest.raises(ValidationError):
        EmbeddingsRequest.model_validate({"model": "m", "input": [*tokens, "text"]})


# ── chat ────────────────────────────────────────────────────────────────────


def asked(**body: Any) -> Any:
    sent = {"model": "m", "messages": USER, **body}
    return ChatCompletionRequest.model_validate(sent).to_domain(5, 0.7)


def test_messages_go_on_as_they_came() -> None:
    messages = [
        {"role": "system", "content": "short", "name": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]
    assert list(asked(messages=messages).messages) == messages


def test_what_goes_to_the_model() -> None:
    options = asked(
        max_tokens=5,
        max_completion_tokens=7,
        stop=["a"],
        store=True,
        metadata={"a": "b"},
        stream=True,
        stream_options={"include_usage": True},
        parallel_tool_calls=True,
        reasoning_effort="low",
        seed=None,
    ).options
    assert options == {"max_completion_tokens": 7, "stop": ["a"], "reasoning_effort": "low"}
    assert asked(max_tokens=5).options == {"max_tokens": 5}


def test_file_search_is_ours_alone() -> None:
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": None, "max_num_results": 3}
    request = asked(tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert (request.file_search.vector_store_ids, request.file_search.options.limit) == (("vs_1",), 3)
    assert request.options == {}
    with pytest.raises(InvalidRequest):
        asked(tools=[tool, tool])


FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "upstream"),
    [
        (None, None),
        ("auto", "auto"),
        ("required", "auto"),
        ({"type": "file_search"}, "none"),
        (FUNCTION, FUNCTION),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "file_search"}, FUNCTION]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "file_search"}]}},
            "none",
        ),
        (  # nothing is searched, so the model is still bound to use one of its own
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FUNCTION]}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FUNCTION]}},
        ),
    ],
)
def test_the_models_tool_choice_knows_no_file_search(choice: Any, upstream: Any) -> None:
    tools = [FUNCTION, {"type": "file_search", "vector_store_ids": ["vs_1"]}]
    assert asked(tools=tools, tool_choice=choice).options.get("tool_choice") == upstream
    assert asked(tools=[FUNCTION], tool_choice="required").options["tool_choice"] == "required"


# ── objects ─────────────────────────────────────────────────────────────────


def test_objects_are_what_the_schema_says() -> None:
    file = StoredFile("file-1", HERE, "a.txt", "user_data", 3, "00", 1, expires_at=3601)
    store = VectorStore(
        "vs_1", HERE, "", None, None, Encoder("hash", 8), 1, 2, FileCounts(1, 2, 3, 4), 9, 7, 600
    )
    error = LastError("invalid_file", "There is no text in it.")
    member = VectorStoreFile("file-1", "vs_1", "a.txt", "failed", ChunkingStrategy(800, 400), 1, None, error)
    assert not violations("GET", "/files/{file_id}", 200, file_object(file))
    shown = vector_store_object(store)
    assert not violations("GET", "/vector_stores/{vector_store_id}", 200, shown, relaxed=True)
    assert (shown["status"], shown["file_counts"]["total"]) == ("in_progress", 10)
    path = "/vector_stores/{vector_store_id}/files/{file_id}"
    assert not violations("GET", path, 200, vector_store_file_object(member))
    told = vector_store_file_object(replace(member, notes=ReadingNotes("cp1252", skipped_pages="3, 7-9")))
    assert told["sherlock"] == {"encoding": "cp1252", "skipped_pages": "3, 7-9"}
    assert not violations("GET", path, 200, told)
    assert "sherlock" not in vector_store_file_object(replace(member, notes=ReadingNotes()))


def test_an_empty_list_has_all_members() -> None:
    empty: Page[StoredFile] = Page((), has_more=False)
    assert list_object(empty, file_object) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_stages_in_a_header() -> None:
    retrieval = Retrieval(
        ("q",),
        (),
        stages=("embed", "dense"),
        degraded=("rerank: late",),
        timings_ms={"embed": 12.345, "rerank": 400.0, "stores": 1},
    )
    assert stages_header(retrieval) == 'embed;dur=12.3, dense, rerank;dur=400.0;degraded="late"'
    assert stages_header(Retrieval((), ())) == ""
    page = search_results_page(retrieval, with_retrieval=True)
    assert page["sherlock"]["degraded"] == ["rerank: late"]


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_header_is_always_plain_ascii(stage: str, reason: str) -> None:
    header = stages_header(Retrieval((), (), stages=(stage,), degraded=(f"{stage}: {reason}",)))
    assert header.isascii()
    assert header.isprintable()
