"""Every row of the checklist through every official client, and every body held against OpenAI's schema."""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.clients.checklist import ROWS
from tests.clients.python.rows import Row
from tests.conformance.clients import CLIENTS, ROOT, Client, Run
from tests.conformance.report import found, page
from tests.conformance.schema import ACCEPTED, differences
from tests.conformance.upstream import Upstream
from tests.contract.data.check_response import request_violations, spec

PAGE = Path(ROOT, "docs/compatibility.md")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_row(runs: dict[str, Run], client: Client, row: Row) -> None:
    wrong = found(runs[client.name], row)
    assert not wrong, "\n".join(wrong)


def test_the_rows_are_all_of_the_api() -> None:
    official = {(method.upper(), path) for path, item in spec()["paths"].items() for method in item}
    assert {(row.method, row.path) for row in ROWS} == official
    assert len({row.key for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_runs_the_same_rows(runs: dict[str, Run], client: Client) -> None:
    assert set(runs[client.name].failures) == {row.key for row in ROWS}


def test_the_clients_are_those_of_the_locks(runs: dict[str, Run]) -> None:
    wanted = json.loads((ROOT / "tests/clients/package.json").read_text())["dependencies"]["openai"]
    versions = [runs[client.name].version for client in CLIENTS]
    assert versions == [f"Python {version('openai')}", "Python 1.99.9", f"Node.js {wanted}"]


def test_nothing_happened_that_nobody_expected(runs: dict[str, Run], complaints: list[str]) -> None:
    assert runs
    assert complaints == []


def test_what_the_language_model_is_asked_fits_the_schema(runs: dict[str, Run], upstream: Upstream) -> None:
    assert runs
    assert upstream.asked
    for body in upstream.asked:
        assert request_violations("POST", "/chat/completions", body) == []


def test_no_difference_is_accepted_that_is_none(runs: dict[str, Run]) -> None:
    seen = {entry for run in runs.values() for exchange in run.exchanges for entry in differences(exchange)}
    assert seen == set(ACCEPTED)


def test_the_published_page_is_what_was_found(runs: dict[str, Run], framework_run: Run) -> None:
    written = page(runs, framework_run)
    if os.environ.get("UPDATE_CONTRACTS"):
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text("utf-8") == written, "run this with UPDATE_CONTRACTS=1"
