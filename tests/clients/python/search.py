"""`/vector_stores/{vector_store_id}/search`."""

from typing import Any

import openai

from .rows import MOUSE, Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
PATH = "/vector_stores/{vector_store_id}/search"


def found(given: Given, query: Any, **options: Any) -> list[str]:
    return [hit.filename for hit in given.client.vector_stores.search(given.animals, query=query, **options)]


@row("POST", PATH, "one query: the best first, scores in 0..1")
def _(given: Given) -> None:
    page = given.client.vector_stores.search(given.animals, query="the nest of the harvest mouse")
    equal(page.object, "vector_store.search_results.page")
    equal(page.search_query, ["the nest of the harvest mouse"])  # type: ignore[attr-defined]
    best = page.data[0]
    equal(
        (best.filename, best.file_id, best.attributes), ("mouse.txt", given.mouse, {"legs": 4, "small": True})
    )
    equal((best.content[0].type, best.content[0].text), ("text", MOUSE))
    scores = [hit.score for hit in page.data]
    equal(scores, sorted(scores, reverse=True))
    holds(all(0 <= score <= 1 for score in scores), f"{scores} do not lie in 0..1")


@row("POST", PATH, "a list of queries, and no more results than asked for")
def _(given: Given) -> None:
    page = given.client.vector_stores.search(
        given.animals, query=["nest of grass", "heart"], max_num_results=1
    )
    equal((len(page.data), page.has_more), (1, False))
    equal(page.search_query, ["nest of grass", "heart"])  # type: ignore[attr-defined]


@row("POST", PATH, "filters, compared and combined")
def _(given: Given) -> None:
    mouse: Any = {"type": "eq", "key": "small", "value": True}
    whale: Any = {"type": "lt", "key": "legs", "value": 2}
    for filters, names in (
        (mouse, ["mouse.txt"]),
        (whale, ["whale.md"]),
        ({"type": "in", "key": "legs", "value": [4, "four"]}, ["mouse.txt"]),
        ({"type": "and", "filters": [mouse, whale]}, []),
        ({"type": "or", "filters": [mouse, {"type": "and", "filters": [whale]}]}, ["mouse.txt", "whale.md"]),
        ({"type": "eq", "key": "small", "value": 1}, []),
        ({"type": "ne", "key": "unheard_of", "value": "x"}, ["mouse.txt", "whale.md"]),
        ({"type": "gt", "key": "unheard_of", "value": 1}, []),
    ):
        equal(sorted(found(given, "how much does it weigh", filters=filters)), names)


@row("POST", PATH, "ranking options and rewrite_query")
def _(given: Given) -> None:
    ranked = found(given, "harvest mouse", ranking_options={"ranker": "none", "score_threshold": 0.0})
    equal(ranked[0], "mouse.txt")
    strict = found(given, "grams", ranking_options={"ranker": "auto", "score_threshold": 1.0})
    holds(len(strict) <= 1, "a threshold of 1 keeps everything")
    holds(
        "mouse.txt" in found(given, "How heavy is a harvest mouse?", rewrite_query=True), "rewriting loses it"
    )


@row("POST", PATH, "what it cannot do: 400 with its place; an unknown store: 404")
def _(given: Given) -> None:
    for options, param in (
        ({"max_num_results": 51}, "max_num_results"),
        ({"filters": {"type": "like", "key": "a", "value": "b"}}, "filters.type"),
        ({"filters": {"type": "and", "filters": []}}, "filters.filters"),
        ({"ranking_options": {"score_threshold": 1.5}}, "ranking_options.score_threshold"),
    ):
        bad: Any = options
        refused(openai.BadRequestError, lambda bad=bad: found(given, "mouse", **bad), param=param)
    refused(openai.NotFoundError, lambda: given.client.vector_stores.search("vs_unknown", query="mouse"))
