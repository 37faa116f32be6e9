"""`contracts/asyncapi.yaml` is what the server publishes, and what it shows at `/async-docs`.

It changes on purpose: run this file with `UPDATE_CONTRACTS=1`.
"""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.serving import Served

from sherlock.asyncapi import QUEUE_GROUP, document
from sherlock.config import Settings
from sherlock.message_schemas import EXCHANGES

PUBLISHED = Path(__file__).parents[2] / "contracts" / "asyncapi.yaml"


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if os.environ.get("UPDATE_CONTRACTS"):
        PUBLISHED.write_text(yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=110))
    loaded: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text())
    return loaded


def nodes(node: Any) -> list[Any]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [node, *(found for part in inner for found in nodes(part))]


def test_published_is_what_the_code_says(published: dict[str, Any]) -> None:
    assert published == document()


def test_every_reference_leads_somewhere(published: dict[str, Any]) -> None:
    references = [
        n["$ref"] for n in nodes(published) if isinstance(n, dict) and isinstance(n.get("$ref"), str)
    ]
    assert len(references) > 50
    for reference in references:
        found: Any = published
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


def test_every_schema_is_a_schema(published: dict[str, Any]) -> None:
    for schema in published["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_subjects_are_those_of_the_contract(published: dict[str, Any]) -> None:
    addresses = {channel["address"] for channel in published["channels"].values()}
    assert addresses == {
        "sherlock.v1.rag.ingest.request",
        "sherlock.v1.rag.ingest.result",
        "sherlock.v1.rag.ingest.progress.{file_id}",
        "sherlock.v1.rag.ingest.parked",
        "sherlock.v1.rag.search.request",
        "sherlock.v1.rag.search.result",
        "sherlock.v1.rag.embed.request",
        "sherlock.v1.rag.embed.result",
        "sherlock.v1.rag.chat.request",
        "sherlock.v1.rag.chat.result",
        "sherlock.v1.chat",
        "sherlock.v1.result",
    }
    assert {exchange.request_subject for exchange in EXCHANGES} < addresses
    assert Settings().nats_queue_group == QUEUE_GROUP


class Page(HTMLParser):
    """What a browser would make of a page: its texts, its anchors, and all that it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.fetched: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given["id"] or ""} if "id" in given else set()
        self.links |= {given["href"] or ""} if "href" in given else set()
        if tag in ("script", "link", "img", "iframe") or "src" in given:
            self.fetched.append(tag)


def test_the_page_is_readable_without_a_network(rag_off: Served, published: dict[str, Any]) -> None:
    with rag_off.http() as http:
        answer = http.get("/async-docs")
        assert http.get("/asyncapi.json").json() == published
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    assert page.fetched == []
    assert not re.search(r"https?://|@import|url\(", answer.text)
    texts = set(page.texts)
    assert {channel["address"] for channel in published["channels"].values()} <= texts
    assert {"file_id", "vs_ids", "hybrid_alpha", "request_id"} <= texts
    assert page.links - {"asyncapi.json"} <= {f"#{anchor}" for anchor in page.ids}
