"""`/models`."""

import openai

from .rows import Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)


@row("GET", "/models", "chat models first, no cursor")
def _(given: Given) -> None:
    page = given.client.models.list()
    holds(page._request_id, "there is no request id")
    ids = [model.id for model in page]
    equal((ids[:2], ids[-1]), (["parrot", "zoo/owl"], "hash"))
    equal(page.data[0].object, "model")


@row("GET", "/models/{model}", "names with a slash; unknown: 404 model_not_found")
def _(given: Given) -> None:
    for name in ("parrot", "zoo/owl", "hash"):
        equal(given.client.models.retrieve(name).id, name)
    refused(openai.NotFoundError, lambda: given.client.models.retrieve("zoo/emu"), code="model_not_found")


@row("DELETE", "/models/{model}", "refused: 403, unknown: 404")
def _(given: Given) -> None:
    refused(openai.PermissionDeniedError, lambda: given.client.models.delete("zoo/owl"))
    refused(openai.NotFoundError, lambda: given.client.models.delete("zoo/emu"), code="model_not_found")
