"""Every refusal has OpenAI's envelope, status, code and words."""

import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.contract.data.check_response import violations
from tests.contract.envelope import refused
from tests.serving import Served

from sherlock.rag.domain.errors import (
    ChatModelMisconfigured,
    ChatModelRateLimited,
    ChatModelUnavailable,
    SherlockError,
    UpstreamRejected,
)

USER = [{"role": "user", "content": "hello"}]
CHAT = {"model": "fake-model", "messages": USER}
FUNCTION = {"type": "function", "function": {"name": "f"}}
STORES = "/v1/vector_stores"
STORE = f"{STORES}/vs_1"
STORE_FILES = f"{STORE}/files"
SEARCH = f"{STORE}/search"
BATCHES = f"{STORE}/file_batches"
EMBEDDINGS = "/v1/embeddings"
COMPLETIONS = "/v1/chat/completions"
RESPONSES = "/v1/responses"


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with rag_on.http() as client:
        yield client


@pytest.fixture(autouse=True)
def healthy_model(rag_on: Served) -> Iterator[None]:
    yield
    rag_on.chat_model.error = rag_on.chat_model.error_after = None


WIDE_FILTER = {"type": "or", "filters": [{"type": "eq", "key": "a", "value": n} for n in range(100)]}
LONG_FILTER = {"type": "in", "key": "a", "value": list(range(1000))}

INVALID = [
    # path, body, param, code, part of the message
    (STORES, {"nmae": "x"}, "nmae", "unknown_parameter", "Unknown parameter: 'nmae'."),
    (STORES, {"name": 5}, "name", "invalid_type", "expected a string, but got an integer"),
    (STORES, [1], None, None, "JSON object"),
    (STORES, {"metadata": {"a": 1}}, "metadata.a", "invalid_type", "expected a string"),
    (STORES, {"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_length", "17"),
    (STORES, {"metadata": {"k" * 65: ""}}, "metadata", "string_above_max_length", "64"),
    (STORES, {"name": "a\x00b"}, "name", "invalid_value", "U+0000"),
    (STORES, {"file_ids": ["f"] * 501}, "file_ids", "array_above_max_length", "maximum length 500"),
    (
        STORES,
        {"expires_after": {"anchor": "last_active_at", "days": 366}},
        "expires_after.days",
        "integer_above_max_value",
        "Expected a value <= 365, but got 366 instead.",
    ),
    (
        STORES,
        {"expires_after": {"anchor": "created_at", "days": 1}},
        "expires_after.anchor",
        "invalid_value",
        "Supported values are: 'last_active_at'",
    ),
    (
        STORES,
        {"chunking_strategy": {"type": "magic"}},
        "chunking_strategy",
        "invalid_value",
        "Supported values are: 'auto', 'static'",
    ),
    (
        STORES,
        {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 100}}},
        "chunking_strategy.static.chunk_overlap_tokens",
        "missing_required_parameter",
        "Missing required parameter",
    ),
    (
        STORES,
        {
            "chunking_strategy": {
                "type": "static",
                "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
            }
        },
        "chunking_strategy.static",
        "invalid_value",
        "half",
    ),
    (STORE_FILES, {}, "file_id", "missing_required_parameter", "Missing required parameter: 'file_id'."),
    (STORE_FILES, {"file_id": "f", "attributes": {"a": [1]}}, "attributes.a", "invalid_type", "an array"),
    (
        STORE_FILES,
        {"file_id": "f", "attributes": {"a": "v" * 513}},
        "attributes.a",
        "string_above_max_length",
        "512",
    ),
    (BATCHES, {}, "file_ids", "missing_required_parameter", "Missing required parameter: 'file_ids'."),
    (BATCHES, {"file_ids": []}, "file_ids", "array_below_min_length", "minimum length 1"),
    (BATCHES, {"file_ids": ["f"] * 2001}, "file_ids", "array_above_max_length", "maximum length 2000"),
    (BATCHES, {"files": [{"file_id": "f"}] * 2001}, "files", "array_above_max_length", "length 2000"),
    (BATCHES, {"file_ids": ["f"], "files": [{"file_id": "f"}]}, "files", "invalid_value", "not both"),
    (BATCHES, {"files": [{}]}, "files[0].file_id", "missing_required_parameter", "files[0].file_id"),
    (BATCHES, {"file_ids": ["a\x00b"]}, "file_ids[0]", "invalid_value", "U+0000"),
    (f"{STORE}/files/file-1", {}, "attributes", "missing_required_parameter", "attributes"),
    (SEARCH, {"query": ""}, "query", "string_below_min_length", "too short"),
    (
        SEARCH,
        {"query": "q" * 32_769},
        "query",
        "string_above_max_length",
        "Expected a string with maximum length 32768, but got 32769 instead.",
    ),
    (SEARCH, {"query": ["q", "q" * 32_769]}, "query[1]", "string_above_max_length", "32768"),
    (SEARCH, {"query": []}, "query", "array_below_min_length", "too short"),
    (SEARCH, {"query": ["a", 5]}, "query[1]", "invalid_type", "expected a string"),
    (SEARCH, {"query": "q", "max_num_results": 51}, "max_num_results", "integer_above_max_value", "50"),
    (SEARCH, {"query": "q", "hybrid_alpha": 1.5}, "hybrid_alpha", "decimal_above_max_value", "1.5"),
    (SEARCH, {"query": "q", "filters": {"key": "a"}}, "filters", "invalid_value", "type"),
    (SEARCH, {"query": "q", "filters": {"type": "like"}}, "filters.type", "invalid_value", "'like'"),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "and", "filters": []}},
        "filters.filters",
        "array_below_min_length",
        "too short",
    ),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "or", "filters": [{"type": "eq", "key": "a"}]}},
        "filters.filters[0].value",
        "missing_required_parameter",
        "filters.filters[0].value",
    ),
    (
        SEARCH,
        {"query": "q", "ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
        "ranking_options.hybrid_search",
        "invalid_value",
        "0",
    ),
    (EMBEDDINGS, {"model": "hash"}, "input", "missing_required_parameter", "input"),
    (EMBEDDINGS, {"model": "hash", "input": ""}, "input", "string_below_min_length", "too short"),
    (EMBEDDINGS, {"model": "hash", "input": []}, "input", "array_below_min_length", "too short"),
    (EMBEDDINGS, {"model": "hash", "input": ["a", ""]}, "input[1]", "string_below_min_length", "too short"),
    (EMBEDDINGS, {"model": "hash", "input": {"a": 1}}, "input", "invalid_value", "array of strings"),
    (EMBEDDINGS, {"model": "hash", "input": [10**9]}, "input", "invalid_value", "cl100k_base"),
    (EMBEDDINGS, {"model": "hash", "input": "a b " * 9000}, "input", "context_length_exceeded", "8192"),
    (
        EMBEDDINGS,
        {"model": "hash", "input": "a", "dimensions": 385},
        "dimensions",
        "integer_above_max_value",
        "384",
    ),
    (COMPLETIONS, {"model": "fake-model"}, "messages", "missing_required_parameter", "messages"),
    (COMPLETIONS, CHAT | {"messages": []}, "messages", "bad_request", "at least one message"),
    (COMPLETIONS, CHAT | {"messages": [{"role": "king"}]}, "messages[0].role", "invalid_value", "'king'"),
    (COMPLETIONS, CHAT | {"messages": [{"role": "user"}]}, "messages[0]", "invalid_value", "content"),
    (
        COMPLETIONS,
        CHAT | {"n": 129},
        "n",
        "integer_above_max_value",
        "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 instead.",
    ),
    (COMPLETIONS, CHAT | {"temperature": "hot"}, "temperature", "invalid_type", "a number"),
    (COMPLETIONS, CHAT | {"stream_options": {}}, "stream_options", None, "only allowed when"),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "or", "filters": [WIDE_FILTER] * 6}},
        "filters",
        "invalid_value",
        "at most 512 filters",
    ),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "or", "filters": [LONG_FILTER] * 11}},
        "filters",
        "invalid_value",
        "10000 listed values",
    ),
    (COMPLETIONS, CHAT | {"messages": USER * 2049}, "messages", "array_above_max_length", "2048"),
    (COMPLETIONS, CHAT | {"stop": []}, "stop", "array_below_min_length", "too short"),
    (COMPLETIONS, CHAT | {"stop": ["x"] * 5}, "stop", "array_above_max_length", "4"),
    (COMPLETIONS, CHAT | {"stop": ["x", ""]}, "stop[1]", "string_below_min_length", "too short"),
    (COMPLETIONS, CHAT | {"stop": ""}, "stop", "string_below_min_length", "too short"),
    (COMPLETIONS, CHAT | {"metadata": {"k" * 65: ""}}, "metadata", "string_above_max_length", "64"),
    (COMPLETIONS, CHAT | {"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length", "512"),
    (
        COMPLETIONS,
        CHAT | {"metadata": {str(n): "" for n in range(17)}},
        "metadata",
        "object_above_max_length",
        "16",
    ),
    (COMPLETIONS, CHAT | {"logit_bias": {"5": 101}}, "logit_bias.5", "integer_above_max_value", "100"),
    (COMPLETIONS, CHAT | {"logit_bias": {"a": 1}}, "logit_bias", "invalid_value", "pattern"),
    (
        COMPLETIONS,
        CHAT | {"response_format": {"type": "yaml"}},
        "response_format",
        "invalid_value",
        "Supported values are: 'text', 'json_object', 'json_schema'",
    ),
    (
        COMPLETIONS,
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
        "invalid_value",
        "pattern",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [{"type": "function", "function": {"name": "n" * 65}}]},
        "tools[0].function.name",
        "string_above_max_length",
        "64",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
        "missing_required_parameter",
        "name",
    ),
    (
        COMPLETIONS,
        CHAT | {"safety_identifier": "s" * 129},
        "safety_identifier",
        "string_above_max_length",
        "128",
    ),
    (COMPLETIONS, CHAT | {"function_call": "auto"}, "function_call", "unsupported_parameter", "tool_choice"),
    (COMPLETIONS, CHAT | {"functions": [{}]}, "functions", "unsupported_parameter", "tools"),
    (COMPLETIONS, CHAT | {"audio": {"voice": "x"}}, "audio", "unsupported_parameter", "audio"),
    (COMPLETIONS, CHAT | {"modalities": ["audio"]}, "modalities[0]", "invalid_value", "'text'"),
    (COMPLETIONS, CHAT | {"tools": [{"type": "custom"}]}, "tools[0]", "invalid_value", "file_search"),
    (COMPLETIONS, CHAT | {"tool_choice": "required"}, "tool_choice", None, "beside 'tools'"),
    (
        COMPLETIONS,
        CHAT | {"tools": [FUNCTION], "tool_choice": {"type": "custom", "custom": {"name": "f"}}},
        "tool_choice.type",
        "invalid_value",
        "allowed_tools",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        "tool_choice",
        None,
        "not among",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [FUNCTION], "tool_choice": {"type": "function"}},
        "tool_choice",
        None,
        "not among",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [FUNCTION], "tool_choice": {"type": "file_search"}},
        "tool_choice",
        None,
        "not among",
    ),
    (
        COMPLETIONS,
        CHAT
        | {
            "tools": [FUNCTION],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
        },
        "tool_choice",
        None,
        "not among",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [{"type": "file_search", "file_search": {"vector_store_ids": ["vs_1"]}}]},
        "tools[0].file_search",
        "unknown_parameter",
        "file_search",
    ),
    (
        COMPLETIONS,
        CHAT | {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"], "file_search": {}}]},
        "tools[0].file_search",
        "unknown_parameter",
        "file_search",
    ),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "eq", "key": "a", "value": None}},
        "filters.value",
        "invalid_type",
        "null",
    ),
    (
        SEARCH,
        {"query": "q", "filters": {"type": "and", "filters": [{"type": "in", "key": "a", "value": None}]}},
        "filters.filters[0].value",
        "invalid_type",
        "null",
    ),
    (COMPLETIONS, CHAT | {"n": 0}, "n", "integer_below_min_value", ">= 1"),
    (COMPLETIONS, CHAT | {"top_logprobs": 3}, "top_logprobs", None, "logprobs"),
    (COMPLETIONS, CHAT | {"stream_options": {"include_usage": True}}, "stream_options", None, "stream"),
    (
        COMPLETIONS,
        CHAT | {"tools": [{"type": "file_search"}]},
        "tools[0].vector_store_ids",
        "missing_required_parameter",
        "vector_store_ids",
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "code", "words"),
    INVALID,
    ids=[f"{path.removeprefix('/v1/')} {param} {code}" for path, _, param, code, _ in INVALID],
)
def test_invalid_bodies(
    http: httpx.Client, path: str, body: Any, param: str | None, code: str | None, words: str
) -> None:
    error = refused(http.post(path, json=body), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert words in error["message"]


def test_null_means_not_given(http: httpx.Client) -> None:
    body = {
        "name": None,
        "metadata": None,
        "file_ids": None,
        "chunking_strategy": None,
        "expires_after": None,
    }
    assert http.post("/v1/vector_stores", json=body).status_code == 200
    assert (
        http.post("/v1/chat/completions", json=CHAT | {"n": None, "tools": None, "stop": None}).status_code
        == 200
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b'{"query": ' + b"[" * 5000, b'{"query": "\xff"}', b"null", b"NaN"]
)
def test_bodies_that_are_not_json_objects(http: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert refused(http.post(f"{STORE}/search", content=content, headers=headers), 400)["message"]


def test_a_body_that_is_too_long_is_refused_unsent(http: httpx.Client) -> None:
    """All of the routes share one limit; a file has its own."""
    for path in (STORES, SEARCH, EMBEDDINGS, COMPLETIONS, RESPONSES):
        with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as raw:
            raw.sendall(
                f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                f"content-length: {64 * 1024 * 1024 + 1}\r\nconnection: close\r\n\r\n{{".encode()
            )
            raw.settimeout(10)
            head, body = b"".join(iter(lambda: raw.recv(65_536), b"")).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 413 "), head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_text_that_is_not_unicode(http: httpx.Client, rag_on: Served) -> None:
    """JSON can write half a surrogate pair; UTF-8 and the database cannot."""
    headers = {"content-type": "application/json"}
    half = "\ud800"
    asked = len(rag_on.chat_model.requests)
    for path, body in (
        (SEARCH, {"query": half}),
        (STORES, {"metadata": {"a": half}}),
        (EMBEDDINGS, {"model": half, "input": "a"}),
        (COMPLETIONS, CHAT | {"model": half}),
        (COMPLETIONS, CHAT | {"metadata": {"a": half}}),
        (COMPLETIONS, CHAT | {"vendor_option": {half: 1}}),
        (COMPLETIONS, CHAT | {"messages": [{"role": "user", "content": half}]}),
        (RESPONSES, {"model": "fake-model", "input": half}),
        (RESPONSES, {"model": "fake-model", "input": [{"role": "user", "content": half}]}),
        (COMPLETIONS, CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": half}]}]}),
    ):
        error = refused(http.post(path, content=json.dumps(body), headers=headers), 400)
        assert error["param"] is None
        assert "surrogate" in error["message"] or "hex escape" in error["message"]
    assert len(rag_on.chat_model.requests) == asked


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("member", "param"),
    [
        ('"temperature": {}', "temperature"),
        ('"vendor_option": {{"a": [{}]}}', "vendor_option"),
        ('"logit_bias": {{"1": {}}}', "logit_bias.1"),
        ('"messages": [{{"role": "user", "content": "a", "weight": {}}}]', "messages"),
    ],
)
def test_numbers_that_are_none(
    http: httpx.Client, rag_on: Served, member: str, param: str, number: str
) -> None:
    asked = len(rag_on.chat_model.requests)
    body = json.dumps(CHAT)[:-1] + ", " + member.format(number) + "}"
    headers = {"content-type": "application/json"}
    error = refused(http.post(COMPLETIONS, content=body, headers=headers), 400)
    assert error["param"] == (param if number == "1e999" else None)
    assert len(rag_on.chat_model.requests) == asked


def test_what_is_nested_too_deep_is_called_so(http: httpx.Client) -> None:
    schema: dict[str, Any] = {}
    for _ in range(150):
        schema = {"properties": {"a": schema}}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    error = refused(http.post(COMPLETIONS, json=CHAT | {"response_format": named}), 400)
    assert "nested too deep" in error["message"]
    assert error["param"] is None
    shallower: Any = schema
    for _ in range(60):
        shallower = shallower["properties"]["a"]
    named["json_schema"] = {"name": "n", "schema": shallower}
    assert http.post(COMPLETIONS, json=CHAT | {"response_format": named}).status_code == 200


def test_what_asks_for_nothing_is_accepted(http: httpx.Client, rag_on: Served) -> None:
    nothing = {"functions": [], "function_call": "none", "audio": None, "modalities": ["text"]}
    assert http.post(COMPLETIONS, json=CHAT | nothing).status_code == 200
    assert not rag_on.chat_model.requests[-1].options


def test_a_search_at_the_bounds(http: httpx.Client, client: openai.OpenAI) -> None:
    path = f"/v1/vector_stores/{client.vector_stores.create().id}/search"
    widest = {"type": "or", "filters": [WIDE_FILTER] * 5}
    longest = {"type": "or", "filters": [LONG_FILTER] * 10}
    for filters in (widest, longest):
        assert http.post(path, json={"query": "q", "filters": filters}).status_code == 200


def deep_filter(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "eq", "key": "a", "value": 1}
    for _ in range(depth):
        inner = {"type": "and", "filters": [inner]}
    return inner


def test_deep_filters(http: httpx.Client, client: openai.OpenAI) -> None:
    store = client.vector_stores.create()
    path = f"/v1/vector_stores/{store.id}/search"
    assert http.post(path, json={"query": "q", "filters": deep_filter(15)}).status_code == 200
    for depth in (17, 300):
        refused(http.post(path, json={"query": "q", "filters": deep_filter(depth)}), 400)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=many", "limit", "invalid_type"),
        ("limit=5_0", "limit", "invalid_type"),
        ("limit=5.0", "limit", "invalid_type"),
        ("limit=%205%20", "limit", "invalid_type"),
        ("limit=%D9%A5", "limit", "invalid_type"),
        ("order=up", "order", "invalid_value"),
    ],
)
def test_invalid_queries(http: httpx.Client, query: str, param: str, code: str) -> None:
    error = refused(http.get(f"/v1/vector_stores?{query}"), 400)
    assert (error["param"], error["code"]) == (param, code)
    if code == "invalid_type":
        refused(http.get(f"/v1/files?{query}"), 400)


@pytest.mark.parametrize("name", ["unknown", "a%0d%0ax", "a/b", "%0a", "x" * 3000, "a%20" * 1000])
def test_models_that_do_not_exist(http: httpx.Client, name: str) -> None:
    for method in ("GET", "DELETE"):
        error = refused(http.request(method, f"/v1/models/{name}"), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert error["message"].endswith("' does not exist or you do not have access to it.")
        assert len(error["message"]) < 200


def test_the_models_of_the_server_cannot_be_deleted(http: httpx.Client, client: openai.OpenAI) -> None:
    for model in client.models.list():
        assert model.id in refused(http.delete(f"/v1/models/{model.id}"), 403)["message"]
        with pytest.raises(openai.PermissionDeniedError):
            client.models.delete(model.id)
    assert next(iter(client.models.list())).id == "fake-model"


def test_long_names_are_not_repeated(http: httpx.Client) -> None:
    name = "a b " * 5000
    for path, body in (
        (EMBEDDINGS, {"model": name, "input": "a"}),
        (COMPLETIONS, CHAT | {"model": name}),
        (STORES, {"file_ids": [name]}),
    ):
        assert len(refused(http.post(path, json=body), 404)["message"]) < 200
    assert len(refused(http.get(f"/v1/files/{'x' * 3000}"), 404)["message"]) < 200


def test_health_has_a_head(http: httpx.Client) -> None:
    for path in ("/health", "/health/ready"):
        answer = http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "strange", ["vs_1", "%00", "..%2F..", "%ff", "x" * 3000, "'; drop table files; --", "😀"]
)
def test_unknown_and_malformed_ids_are_not_found(http: httpx.Client, strange: str) -> None:
    for method, path in (
        ("GET", "/v1/files/{}"),
        ("DELETE", "/v1/files/{}"),
        ("GET", "/v1/files/{}/content"),
        ("GET", "/v1/vector_stores/{}"),
        ("DELETE", "/v1/vector_stores/{}"),
        ("GET", "/v1/vector_stores/{}/files"),
        ("GET", "/v1/vector_stores/{}/files/file-1"),
        ("GET", "/v1/vector_stores/vs_1/files/{}"),
        ("DELETE", "/v1/vector_stores/vs_1/files/{}"),
        ("GET", "/v1/vector_stores/vs_1/files/{}/content"),
        ("GET", "/v1/vector_stores/{}/file_batches/vsfb_1"),
        ("GET", "/v1/vector_stores/vs_1/file_batches/{}"),
        ("GET", "/v1/vector_stores/vs_1/file_batches/{}/files"),
        ("POST", "/v1/vector_stores/vs_1/file_batches/{}/cancel"),
        ("GET", "/v1/files?after={}"),
        ("GET", "/v1/models/{}"),
    ):
        error = refused(http.request(method, path.format(strange)), 404)
        assert error["type"] == "invalid_request_error"
    for path, body in (
        (f"/v1/vector_stores/{strange}/search", {"query": "q"}),
        (f"/v1/vector_stores/{strange}/files", {"file_id": "file-1"}),
        (f"/v1/vector_stores/{strange}/file_batches", {"file_ids": ["file-1"]}),
        ("/v1/vector_stores", {"file_ids": ["file-1"]}),
        ("/v1/embeddings", {"model": "unknown", "input": "a"}),
        ("/v1/chat/completions", CHAT | {"model": "unknown"}),
    ):
        refused(http.post(path, json=body), 404)


def test_routes_methods_and_slashes(http: httpx.Client) -> None:
    assert refused(http.get("/v1/unheard-of"), 404)["message"] == "Invalid URL (GET /v1/unheard-of)"
    answer = http.put("/v1/files")
    refused(answer, 405)
    assert answer.headers["allow"]
    refused(http.get("/v1/files/"), 404)
    refused(http.post("/v1/conversations", json={}), 404)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "purpose", "missing_required_parameter"),
        ({"purpose": "fun"}, "purpose", "invalid_value"),
        ({"purpose": "batch", "colour": "red"}, "colour", "unknown_parameter"),
        (
            {"purpose": "batch", "expires_after[seconds]": "3600"},
            "expires_after.anchor",
            "missing_required_parameter",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after.seconds",
            "integer_below_min_value",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
            "expires_after.seconds",
            "invalid_type",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "expires_after.anchor",
            "invalid_value",
        ),
    ],
)
def test_invalid_uploads(http: httpx.Client, fields: dict[str, str], param: str, code: str) -> None:
    error = refused(http.post("/v1/files", data=fields, files={"file": ("a.txt", b"text")}), 400)
    assert (error["param"], error["code"]) == (param, code)


def test_fields_may_stand_on_both_sides_of_the_file(http: httpx.Client) -> None:
    def field(name: str, value: str) -> bytes:
        return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()

    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\ntext\r\n'
    purpose, anchor = field("purpose", "batch"), field("expires_after[anchor]", "created_at")
    headers = {"content-type": "multipart/form-data; boundary=b"}
    body = purpose + anchor + file + field("expires_after[seconds]", "3600") + b"--b--\r\n"
    stored = http.post("/v1/files", content=body, headers=headers).json()
    assert stored["expires_at"] == stored["created_at"] + 3600

    endless = anchor + field("purpose", "fun") + file
    error = refused(http.post("/v1/files", content=endless, headers=headers), 400)
    assert error["param"] == "purpose", "the body has no end, so this was found before"


def test_uploads_that_are_no_form(http: httpx.Client) -> None:
    form = {"content-type": "multipart/form-data; boundary=b"}
    whole = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ntext\r\n--b--\r\n'
    for content, headers in (
        (b"{}", {"content-type": "application/json"}),
        (b"text", {"content-type": "multipart/form-data"}),
        (b"text", form),
        (b"", form),
        (whole, {"content-type": f"multipart/form-data; boundary={'b' * 5000}"}),
        (whole[:-10], form),
        (whole[:-6] + whole, form),
        (b"--b\r\nbroken\r\n\r\n--b--\r\n", form),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + b"x" * 5000 + b"\r\n--b--\r\n", form),
    ):
        refused(http.post("/v1/files", content=content, headers=headers), 400)
    nameless = b"--b\r\nContent-Disposition: form-data\r\n\r\ntext\r\n--b--\r\n"
    error = refused(http.post("/v1/files", content=nameless, headers=form), 400)
    assert (error["message"], error["param"]) == ("A part of the form has no name.", None)
    nothing = http.post("/v1/files", files={"other": ("a.txt", b"text")}, data={"purpose": "batch"})
    assert refused(nothing, 400)["param"] == "file"


def test_a_file_that_is_too_large_is_refused_while_it_comes(
    http: httpx.Client, client: openai.OpenAI
) -> None:
    before = {file.id for file in client.files.list()}
    error = refused(http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x" * 1_000_001}), 400)
    assert error["code"] == "file_too_large"

    def endless() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(40):
            yield b"x" * 100_000

    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert (
        refused(http.post("/v1/files", content=endless(), headers=headers), 400)["code"] == "file_too_large"
    )
    assert {file.id for file in client.files.list()} == before


def test_a_client_that_goes_while_it_uploads_is_not_our_fault(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    begun = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ntext'
    with caplog.at_level(logging.INFO, "sherlock"):
        with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as raw:
            raw.sendall(
                b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
                b"content-type: multipart/form-data; boundary=b\r\n\r\n" + begun
            )
        deadline = time.monotonic() + 10
        while 499 not in (seen := statuses(caplog)) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert seen[-1] == 499
    assert set(seen[:-1]) <= {200}, "an earlier request's line may come late"


def statuses(caplog: pytest.LogCaptureFixture) -> list[int | None]:
    """Of the requests logged; `None` of any other line."""
    return [getattr(line, "status", None) for line in caplog.records]


def test_a_file_nobody_can_read_is_refused(http: httpx.Client) -> None:
    sent = http.post(
        "/v1/files", data={"purpose": "assistants"}, files={"file": ("a.xyz", b"\x00\x01\x02" * 99)}
    )
    assert refused(sent, 400)["code"] == "unsupported_file_type"


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (ChatModelUnavailable("It is down."), 503, "llm_unavailable", {"x-should-retry": None}),
        (
            ChatModelMisconfigured("It refused the key."),
            503,
            "llm_unavailable",
            {"x-should-retry": "false"},
        ),
        (
            ChatModelRateLimited("Slow down.", retry_after_s=2.4),
            429,
            "rate_limit_exceeded",
            {"retry-after": "3"},
        ),
        (ChatModelRateLimited("Slow down."), 429, "rate_limit_exceeded", {"retry-after": None}),
        (
            UpstreamRejected("Too long.", param="messages", code="context_length_exceeded"),
            400,
            "context_length_exceeded",
            {},
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_fails_at_once(
    rag_on: Served,
    http: httpx.Client,
    error: SherlockError,
    status: int,
    code: str,
    headers: Any,
    stream: bool,
) -> None:
    rag_on.chat_model.error = error
    answer = http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert refused(answer, status)["code"] == code
    assert {name: answer.headers.get(name) for name in headers} == headers


def test_errors_have_the_published_shape(http: httpx.Client) -> None:
    assert not violations("GET", "/v1/files/x", 404, http.get("/v1/files/x").json())


def test_the_clients_exceptions(rag_on: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.vector_stores.search("vs_1", query="")
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve("file-unknown")
    rag_on.chat_model.error = ChatModelRateLimited("Slow down.")
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(**CHAT)  # type: ignore[call-overload]


def test_a_callers_request_id_is_kept(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    assert http.get("/health", headers={"x-request-id": "a b\tc"}).headers["x-request-id"].startswith("req_")
