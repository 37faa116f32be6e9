"""LangChain and the OpenAI Agents SDK on Sherlock: rows hold, and what is exchanged fits the schema."""

import re
from itertools import chain

import pytest
from tests.conformance.clients import ROOT, Run
from tests.conformance.report import wrong_with

SOURCES = {
    "langchain-openai": ROOT / "tests/clients/frameworks/langchain.py",
    "openai-agents": ROOT / "tests/clients/frameworks/agents_sdk.py",
}
# The frameworks are not installed where the tests run, so that the rows cannot be imported.
ROWS = [
    f"{framework}: {what}"
    for framework, source in SOURCES.items()
    for what in re.findall(r'^@row\("(.+)"\)$', source.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("row", ROWS)
def test_row(framework_run: Run, row: str) -> None:
    assert framework_run.of_row(row), "it reached no server"
    assert not wrong_with(framework_run, row)


def test_every_row_ran(framework_run: Run) -> None:
    assert list(framework_run.failures) == ROWS


def test_langchain_embeds_token_ids(framework_run: Run) -> None:
    """Not by its own account: as its requests were seen."""
    first, *_ = [row for row in ROWS if "token ids" in row]
    inputs = [exchange.request.json()["input"] for exchange in framework_run.of_row(first)]
    kinds = {type(one) for one in chain.from_iterable(inputs)}
    assert kinds == {str, list}


def test_the_frameworks_are_those_of_the_lock(framework_run: Run) -> None:
    lock = (ROOT / "tests/clients/frameworks.lock").read_text("utf-8")
    versions = [re.search(rf"^{name}==(\S+)", lock, re.MULTILINE) for name in SOURCES]
    assert framework_run.version == ", ".join(
        f"{name} {found[1]}" for name, found in zip(SOURCES, versions, strict=True) if found
    )


def test_nothing_happened_that_nobody_expected(framework_run: Run, complaints: list[str]) -> None:
    assert framework_run.stderr == ""
    assert complaints == []
