"""`contracts/openapi.yaml` is what the server publishes.

It changes on purpose: run this file with `UPDATE_CONTRACTS=1`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.data.check_response import spec
from tests.serving import Served

from sherlock import openapi
from sherlock.config import Settings
from sherlock.main import create_app

PUBLISHED = Path(__file__).parents[2] / "contracts" / "openapi.yaml"
LATER = ("/responses/compact", "/chat/completions/{completion_id}")
"""Parts of OpenAI's API that are not served yet."""
MAY_CONTRADICT = {
    "searchVectorStore",
    "createVectorStoreFile",
    "createVectorStoreFileBatch",
    "createChatCompletion",
    "createResponse",
}
"""What meets the encoder that a store is pinned to; attaching also meets the chunk sizes of before."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings(rag_enabled=True)).openapi()


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "delete", "put", "patch")
    }


def test_published_is_what_the_application_says(document: dict[str, Any]) -> None:
    if os.environ.get("UPDATE_CONTRACTS"):
        plain = json.loads(json.dumps(document))  # without objects that stand in two places: no anchors
        PUBLISHED.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))
    assert yaml.safe_load(PUBLISHED.read_text()) == document


def test_published_is_what_is_served(rag_on: Served) -> None:
    with rag_on.http() as http:
        assert http.get("/openapi.json").json() == yaml.safe_load(PUBLISHED.read_text())


def test_it_names_the_operations_of_openai(document: dict[str, Any]) -> None:
    """Paths and operation ids are OpenAI's, and of its calls only those for later are missing."""
    official = {
        key: operation
        for key, operation in operations(spec()).items()
        if not any(part in key[1] for part in LATER)
    }
    ours = {
        (method, path.removeprefix("/v1")): operation
        for (method, path), operation in operations(document).items()
        if path.startswith("/v1")
    }
    assert set(ours) == set(official)
    for key, operation in ours.items():
        assert operation["operationId"] == official[key]["operationId"]


def test_every_operation_documents_its_errors(document: dict[str, Any]) -> None:
    envelope = {"$ref": "#/components/schemas/ErrorResponse"}
    for (method, path), operation in operations(document).items():
        statuses = set(operation["responses"])
        assert "422" not in statuses, f"{method} {path}: validation answers 400"
        if not path.startswith("/v1"):
            continue
        assert {"500", "503", "default"} <= statuses, f"{method} {path}"
        assert "requestBody" not in operation or "400" in statuses, f"{method} {path}"
        takes_json = "application/json" in operation.get("requestBody", {}).get("content", {})
        assert takes_json == ("413" in statuses), f"{method} {path}: bodies have a limit"
        may_contradict = operation["operationId"] in MAY_CONTRADICT
        assert may_contradict == ("409" in statuses), f"{method} {path}"
        assert "{" not in path or "404" in statuses, f"{method} {path}"
        for status in statuses - {"200", "202", "206"}:
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == envelope, f"{method} {path} {status}"


def test_every_operation_says_what_it_is_about(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for (method, path), operation in operations(document).items():
        assert operation["description"], f"{method} {path}"
        assert set(operation["tags"]) <= tags, f"{method} {path}"
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), f"{method} {path} {parameter['name']}"
        for status, response in operation["responses"].items():
            assert "x-request-id" in response["headers"], f"{method} {path} {status}"


def test_what_is_said_of_an_operation_is_said_of_one_that_exists(document: dict[str, Any]) -> None:
    known = {operation["operationId"]: operation for operation in operations(document).values()}
    assert openapi.EXAMPLES.keys() <= known.keys()
    for name, status in openapi.HEADERS_OF_OPERATION:
        assert status in known[name]["responses"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(value) for value in node.values()))
        return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()

    known = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "headers")
        for name in document["components"][kind]
    }
    assert references(document) <= known
    assert "#/components/schemas/ChatCompletionChunk" in references(document)
