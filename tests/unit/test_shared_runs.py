"""Requests that wait at once share a run, and nobody pays for it."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from sherlock.rag.shared_runs import SharedRuns


class Model:
    """Upper case; the first run waits until it is let go, so that others gather behind it."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.let_go = threading.Event()
        self.given_up = threading.Event()

    def __call__(self, texts: list[str], abandoned: Callable[[], bool]) -> list[str]:
        self.runs.append(texts)
        self.let_go.wait(10)
        if abandoned():
            self.given_up.set()
            raise ValueError("nobody waits")
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.let_go.set()


@pytest.fixture
def runs(model: Model) -> Iterator[SharedRuns[str]]:
    runs = SharedRuns(model, 10, "test")
    yield runs
    runs.close()


async def gathered(runs: SharedRuns[str], *requests: list[str]) -> list["asyncio.Task[list[str]]"]:
    """Requests behind a first one that has begun."""
    tasks = [asyncio.ensure_future(runs(texts)) for texts in (["first"], *requests)]
    await asyncio.sleep(0.05)
    return tasks


async def test_small_requests_share_a_run_in_order(runs: SharedRuns[str], model: Model) -> None:
    tasks = await gathered(runs, ["a", "b"], [], ["c"], ["a long one by itself"], ["d"], ["e"])
    model.let_go.set()
    assert await asyncio.gather(*tasks) == [
        ["FIRST"], ["A", "B"], [], ["C"], ["A LONG ONE BY ITSELF"], ["D"], ["E"],
    ]  # fmt: skip
    assert model.runs == [["first"], ["a", "b", "c"], ["a long one by itself"], ["d", "e"]]


async def test_a_text_that_fails_harms_only_its_own_request(runs: SharedRuns[str], model: Model) -> None:
    tasks = await gathered(runs, ["a"], ["bad"], ["b"])
    model.let_go.set()
    first, a, bad, b = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, a, b) == (["FIRST"], ["A"], ["B"])
    assert isinstance(bad, ValueError)


async def test_requests_that_are_taken_back_are_not_run(runs: SharedRuns[str], model: Model) -> None:
    tasks = await gathered(runs, ["a"], ["b"])
    tasks[1].cancel()
    await asyncio.sleep(0)
    model.let_go.set()
    assert await tasks[2] == ["B"]
    assert model.runs == [["first"], ["b"]]


async def test_a_run_is_given_up_when_nobody_waits_any_more(runs: SharedRuns[str], model: Model) -> None:
    [first] = await gathered(runs)
    first.cancel()
    await asyncio.wait([first])
    model.let_go.set()
    assert await asyncio.to_thread(model.given_up.wait, 5)
    assert await runs(["next"]) == ["NEXT"]


async def test_closing_cancels_those_who_wait(model: Model) -> None:
    runs = SharedRuns(model, 10, "test")
    first, waiting = await gathered(runs, ["a"])
    runs.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    model.let_go.set()
    assert await first == ["FIRST"]
    with pytest.raises(RuntimeError):
        await runs(["late"])
