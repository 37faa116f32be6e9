"""`sherlock up`: the address it chooses, and what it says when everything is ready."""

import io
import socket

import httpx
import pytest
from fastapi import FastAPI
from rich.console import Console

from sherlock import local
from sherlock.config import Settings
from sherlock.local import first_model, free_port, greet, local_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8802"),
        ("localhost", "http://localhost:8802"),
        ("0.0.0.0", "http://127.0.0.1:8802"),
        ("::1", "http://[::1]:8802"),
        ("::", "http://[::1]:8802"),
    ],
)
def test_the_address_can_be_opened(host: str, url: str) -> None:
    assert local_url(host, 8802) == url
    assert httpx.URL(local_url(host, 8802)).port == 8802


def test_a_port_is_chosen_where_none_is_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port("127.0.0.1", taken.getsockname()[1]) == 0
    chosen = free_port("127.0.0.1", 0)
    assert chosen > 0
    assert free_port("127.0.0.1", chosen) == chosen


def test_a_host_of_another_machine_cannot_be_used() -> None:
    assert free_port("192.0.2.1", 0) == 0


def api(models: object) -> httpx.AsyncClient:
    """A Sherlock that is ready and lists `models`."""
    app = FastAPI()
    app.get("/health/ready")(lambda: {})
    app.get("/v1/models")(lambda: models)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app))


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ({"data": [{"id": "one"}, {"id": "two"}]}, "one"),
        ({"data": []}, None),
        ({"error": {"message": "unavailable"}}, None),
        ([], None),
    ],
)
async def test_a_model_is_named_where_there_is_one(models: object, name: str | None) -> None:
    async with api(models) as client:
        assert await first_model(client, "http://sherlock") == name


def listening(monkeypatch: pytest.MonkeyPatch, models: object) -> Console:
    """What is said goes to the console; requests go to an API that lists `models`."""
    client = api(models)
    console = Console(width=200, record=True, file=io.StringIO())
    monkeypatch.setattr(local, "err", console)
    monkeypatch.setattr(local.httpx, "AsyncClient", lambda **_: client)
    return console


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"data": [{"id": "it's [one]"}]}, """"model": "it'"'"'s [one]\""""),
        ({"error": {}}, "lists no language model"),
    ],
)
async def test_the_greeting_never_stays_away(
    monkeypatch: pytest.MonkeyPatch, models: object, said: str
) -> None:
    console = listening(monkeypatch, models)
    await greet(Settings(host="::1", port=8802))
    text = console.export_text()
    assert "Sherlock is ready at http://[::1]:8802/v1" in text
    assert said in text
