"""Each endpoint's bad requests, sent as they are: status, code and the parameter that is named.

`test_error_envelope.py` goes deeper into what search, embeddings and chat check.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.contract.envelope import refused
from tests.serving import Served

from sherlock.config import Settings
from sherlock.main import create_app

INVALID_TYPE, INVALID_VALUE = "invalid_type", "invalid_value"
MISSING, UNKNOWN = "missing_required_parameter", "unknown_parameter"
TOO_LOW, TOO_HIGH = "integer_below_min_value", "integer_above_max_value"
TOO_SHORT, TOO_LONG = "array_below_min_length", "array_above_max_length"

STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 4097, "chunk_overlap_tokens": 0}}
UPLOAD = {"filename": "a.txt", "purpose": "assistants", "bytes": 3, "mime_type": "text/plain"}
ASKED = {"model": "fake-model", "input": "hello"}
BATCHES = "/vector_stores/{store}/file_batches"


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


BAD_QUERIES = [
    # path, what is named, code
    ("/files?limit=0", "limit", TOO_LOW),
    ("/files?limit=10001", "limit", TOO_HIGH),
    ("/files?order=up", "order", INVALID_VALUE),
    ("/vector_stores/{store}/files?limit=101", "limit", TOO_HIGH),
    ("/vector_stores/{store}/files?limit=x", "limit", INVALID_TYPE),
    ("/vector_stores/{store}/files?order=up", "order", INVALID_VALUE),
    ("/vector_stores/{store}/files?filter=done", "filter", INVALID_VALUE),
    (BATCHES + "/{batch}/files?limit=0", "limit", TOO_LOW),
    (BATCHES + "/{batch}/files?order=up", "order", INVALID_VALUE),
    (BATCHES + "/{batch}/files?filter=done", "filter", INVALID_VALUE),
    ("/responses/{response}/input_items?limit=0", "limit", TOO_LOW),
    ("/responses/{response}/input_items?limit=101", "limit", TOO_HIGH),
    ("/responses/{response}/input_items?order=up", "order", INVALID_VALUE),
]

BAD_BODIES: list[tuple[str, dict[str, Any], str, str]] = [
    # path, body, what is named, code
    (
        "/vector_stores",
        {"expires_after": {"anchor": "last_active_at", "days": 0}},
        "expires_after.days",
        TOO_LOW,
    ),
    ("/vector_stores", {"expires_after": {"anchor": "last_active_at"}}, "expires_after.days", MISSING),
    ("/vector_stores", {"file_ids": "file-1"}, "file_ids", INVALID_TYPE),
    ("/vector_stores", {"file_ids": [1]}, "file_ids[0]", INVALID_TYPE),
    ("/vector_stores", {"metadata": ["a"]}, "metadata", INVALID_TYPE),
    ("/vector_stores/{store}", {"description": "no longer"}, "description", UNKNOWN),
    ("/vector_stores/{store}", {"name": 5}, "name", INVALID_TYPE),
    ("/vector_stores/{store}", {"metadata": {"a": True}}, "metadata.a", INVALID_TYPE),
    ("/vector_stores/{store}", {"expires_after": {"days": 5}}, "expires_after.anchor", MISSING),
    ("/vector_stores/{store}/files", {"file_id": 7}, "file_id", INVALID_TYPE),
    ("/vector_stores/{store}/files", {"file_id": "file-1", "filename": "a"}, "filename", UNKNOWN),
    (
        "/vector_stores/{store}/files",
        {"file_id": "file-1", "chunking_strategy": STATIC},
        "chunking_strategy.static.max_chunk_size_tokens",
        TOO_HIGH,
    ),
    ("/vector_stores/{store}/files/{file}", {"attributes": {"a": None}}, "attributes.a", INVALID_TYPE),
    ("/vector_stores/{store}/files/{file}", {"attributes": []}, "attributes", INVALID_TYPE),
    ("/vector_stores/{store}/search", {}, "query", MISSING),
    ("/vector_stores/{store}/search", {"query": "a", "page": 2}, "page", UNKNOWN),
    ("/embeddings", {"input": "a"}, "model", MISSING),
    (
        "/embeddings",
        {"model": "hash", "input": "a", "encoding_format": "hex"},
        "encoding_format",
        INVALID_VALUE,
    ),
    ("/embeddings", {"model": "hash", "input": "a", "dimensions": 0}, "dimensions", TOO_LOW),
    ("/embeddings", {"model": "hash", "input": ["a"] * 2049}, "input", TOO_LONG),
    # ── uploads ──
    *(("/uploads", without(UPLOAD, name), name, MISSING) for name in UPLOAD),
    ("/uploads", UPLOAD | {"purpose": "fun"}, "purpose", INVALID_VALUE),
    ("/uploads", UPLOAD | {"bytes": "3"}, "bytes", INVALID_TYPE),
    ("/uploads", UPLOAD | {"bytes": -1}, "bytes", TOO_LOW),
    ("/uploads", UPLOAD | {"colour": "red"}, "colour", UNKNOWN),
    (
        "/uploads",
        UPLOAD | {"expires_after": {"anchor": "created_at", "seconds": 3599}},
        "expires_after.seconds",
        TOO_LOW,
    ),
    ("/uploads/{upload}/complete", {}, "part_ids", MISSING),
    ("/uploads/{upload}/complete", {"part_ids": "part_1"}, "part_ids", INVALID_TYPE),
    # ── file batches ──
    (BATCHES, {"file_ids": "file-1"}, "file_ids", INVALID_TYPE),
    (BATCHES, {"file_ids": []}, "file_ids", TOO_SHORT),
    (BATCHES, {"file_ids": ["file-1"] * 2001}, "file_ids", TOO_LONG),
    (BATCHES, {"file_ids": ["file-1"], "attributes": {"a": [1]}}, "attributes.a", INVALID_TYPE),
    (BATCHES, {"files": [{}]}, "files[0].file_id", MISSING),
    (
        BATCHES,
        {"files": [{"file_id": "file-1", "attributes": {"a": [1]}}]},
        "files[0].attributes.a",
        INVALID_TYPE,
    ),
    (BATCHES, {"file_ids": ["file-1"], "colour": "red"}, "colour", UNKNOWN),
    # ── responses ──
    ("/responses", ASKED | {"input": 5}, "input", INVALID_TYPE),
    ("/responses", ASKED | {"max_output_tokens": 15}, "max_output_tokens", TOO_LOW),
    ("/responses", ASKED | {"temperature": "hot"}, "temperature", INVALID_TYPE),
    ("/responses", ASKED | {"metadata": {"a": 1}}, "metadata.a", INVALID_TYPE),
    ("/responses", ASKED | {"tools": [{"type": "file_search"}]}, "tools[0].vector_store_ids", MISSING),
]


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with rag_on.http() as client:
        yield client


@pytest.fixture(scope="module")
def stored(http: httpx.Client) -> dict[str, str]:
    """Ids for the paths. What is checked before anything is looked up needs no real one."""
    store = http.post("/v1/vector_stores", json={}).json()["id"]
    sent = http.post("/v1/files", data={"purpose": "assistants"}, files={"file": ("a.txt", b"text")})
    file = sent.json()["id"]
    http.post(f"/v1/vector_stores/{store}/files?sync=true", json={"file_id": file})
    unknown = {"upload": "upload_1", "batch": "vsfb_1", "response": "resp_1"}
    return {"store": store, "file": file, **unknown}


@pytest.mark.parametrize(("path", "param", "code"), BAD_QUERIES, ids=[case[0] for case in BAD_QUERIES])
def test_bad_queries(http: httpx.Client, stored: dict[str, str], path: str, param: str, code: str) -> None:
    error = refused(http.get(f"/v1{path.format(**stored)}"), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    BAD_BODIES,
    ids=[f"{case[0]} {case[2]} {case[3]}" for case in BAD_BODIES],
)
def test_bad_bodies(
    http: httpx.Client, stored: dict[str, str], path: str, body: Any, param: str, code: str
) -> None:
    error = refused(http.post(f"/v1{path.format(**stored)}", json=body), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/vector_stores/vs_none", {"name": "x"}),
        ("POST", "/vector_stores/{store}/files/file-none", {"attributes": {}}),
        ("POST", "/vector_stores/vs_none/files/{file}", {"attributes": {}}),
        ("GET", "/vector_stores?after=vs_none", None),
        ("GET", "/vector_stores?before=vs_none", None),
        ("GET", "/vector_stores/{store}/files?after=file-none", None),
        ("GET", "/vector_stores/{store}/files?before=file-none", None),
        ("POST", BATCHES, {"file_ids": ["file-none"]}),
        ("POST", "/vector_stores/vs_none/file_batches", {"file_ids": ["file-none"]}),
        ("GET", BATCHES + "/vsfb_none", None),
        ("POST", BATCHES + "/vsfb_none/cancel", None),
        ("GET", BATCHES + "/vsfb_none/files", None),
        ("POST", "/uploads/upload_none/complete", {"part_ids": ["part_none"]}),
        ("POST", "/uploads/upload_none/cancel", None),
        ("GET", "/responses/resp_none", None),
        ("DELETE", "/responses/resp_none", None),
        ("POST", "/responses/resp_none/cancel", None),
        ("GET", "/responses/resp_none/input_items", None),
        ("POST", "/responses", ASKED | {"previous_response_id": "resp_none"}),
    ],
)
def test_what_is_not_there(
    http: httpx.Client, stored: dict[str, str], method: str, path: str, body: Any
) -> None:
    """The message tells an unknown id from an unknown URL."""
    answer = http.request(method, f"/v1{path.format(**stored)}", json=body)
    error = refused(answer, 404)
    assert error["type"] == "invalid_request_error"
    assert not error["message"].startswith("Invalid URL"), error["message"]


def test_a_part_is_a_form_with_data(http: httpx.Client) -> None:
    upload = http.post("/v1/uploads", json=UPLOAD).json()["id"]
    path = f"/v1/uploads/{upload}/parts"
    assert refused(http.post(path, files={"file": b"abc"}), 400)["param"] in ("data", "file")
    refused(http.post(path, json={"data": "abc"}), 400)
    refused(http.post(path), 400)


# ── every operation that is published ───────────────────────────────────────

DOCUMENT = create_app(Settings(rag_enabled=True)).openapi()["paths"]
OPERATIONS = [(method, path) for path, item in DOCUMENT.items() for method in item]
WITH_JSON = [
    (method, path)
    for method, path in OPERATIONS
    if "application/json" in DOCUMENT[path][method].get("requestBody", {}).get("content", {})
]


def concrete(path: str) -> str:
    return path.replace("{", "").replace("}", "")


def offered(path: str) -> set[str]:
    """The methods of every route that a concrete path fits: an id may be called like another route."""
    fitting = [p for p in DOCUMENT if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", p), path)]
    return {method.upper() for fit in fitting for method in DOCUMENT[fit]}


@pytest.mark.parametrize(("method", "path"), WITH_JSON)
def test_what_is_no_json_object(http: httpx.Client, method: str, path: str) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{", b"[]", b'"text"', b"7", b"\xff", b'{"a": 1,}'):
        error = refused(http.request(method, concrete(path), content=content, headers=headers), 400)
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [path for path in DOCUMENT if path.startswith("/v1/")])
def test_methods_that_are_not_offered(http: httpx.Client, path: str) -> None:
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - offered(concrete(path)):
        answer = http.request(method, concrete(path))
        refused(answer, 405)
        allowed = {name.strip() for name in answer.headers["allow"].split(",")}
        assert allowed <= offered(concrete(path)) | {"HEAD"}
        assert allowed
