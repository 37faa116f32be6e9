"""Readiness: what a check may do, and what is said of it."""

import asyncio

import pytest

from sherlock import readiness
from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import ComponentStatus
from sherlock.readiness import Readiness, is_ready, off, proven_by


class Part:
    def __init__(self) -> None:
        self.down = False

    async def check(self) -> None:
        if self.down:
            raise DatabaseUnavailable


async def test_a_part_goes_down_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(readiness.time, "time", lambda: now)
    part = Part()
    ready = Readiness({"postgres": proven_by(part.check), "nats": off})
    first = await ready()
    assert first["postgres"] == ComponentStatus("ready", since=1_000)
    assert is_ready(first)

    now = 1_010.0
    assert (await ready())["postgres"].since == 1_000, "since counts from the last change"

    part.down = True
    second = await ready()
    assert second["postgres"] == ComponentStatus("unavailable", 1_010, "The database is unavailable.")
    assert not is_ready(second)


async def test_a_check_that_hangs_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CHECK_TIMEOUT_S", 0.05)

    async def hangs() -> ComponentStatus:
        await asyncio.Event().wait()
        raise AssertionError

    found = await Readiness({"file_store": hangs})()
    assert found["file_store"].state == "unavailable"


async def test_a_check_that_is_broken_is_unavailable_and_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> ComponentStatus:
        raise ZeroDivisionError("secret")

    found = await Readiness({"file_store": broken, "nats": off})()
    assert (found["file_store"].state, found["file_store"].reason) == (
        "unavailable",
        "It failed unexpectedly.",
    )
    assert found["nats"].state == "off"
    [record] = caplog.records
    assert (record.component, record.error) == ("file_store", "ZeroDivisionError")  # type: ignore[attr-defined]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("state", "ready"),
    [("ready", True), ("idle", True), ("off", True), ("starting", False), ("unavailable", False)],
)
def test_which_states_are_ready(state: str, ready: bool) -> None:
    assert is_ready({"llm": ComponentStatus(state, 0)}) is ready  # type: ignore[arg-type]
