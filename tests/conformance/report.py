"""What came of the rows: faults for a test to show, and the table for readers."""

from itertools import groupby

from tests.clients.checklist import ROWS
from tests.clients.python.rows import Row
from tests.conformance.clients import CLIENTS, Run
from tests.conformance.schema import ACCEPTED, faults
from tests.contract.data.check_response import find_path

INTRODUCTION = """\
# Compatibility with OpenAI's API

Every row below is run by three official clients against Sherlock on a real socket, through the client's typed
objects and helpers; every request, answer and event stream they exchange is held against OpenAI's published
schema. ✓: the row holds; ✗: it does not. The tests in `tests/conformance` write this page, and fail when it
is out of date:

    UPDATE_CONTRACTS=1 make test PYTEST_ARGS=tests/conformance

"""


def found(run: Run, row: Row) -> list[str]:
    """What is wrong with the row: by the client's own judgement, then by the schema's."""
    if row.key not in run.failures:
        return ["the client does not run this row"]
    made = [(exchange.method, find_path(exchange.path)) for exchange in run.of_row(row.key)]
    missing = [] if (row.method, row.path) in made else ["the call that the row is about was not made"]
    return missing + wrong_with(run, row.key)


def wrong_with(run: Run, key: str) -> list[str]:
    """Of any row that ran."""
    failure = run.failures[key]
    return ([failure] if failure else []) + [
        fault for exchange in run.of_row(key) for fault in faults(exchange)
    ]


def page(runs: dict[str, Run], frameworks: Run) -> str:
    """Markdown: a table of the rows for each resource, one of the frameworks, what differs on purpose."""
    versions = [runs[client.name].version for client in CLIENTS]
    parts = [INTRODUCTION]
    for title, rows in groupby(ROWS, lambda row: resource(row.path)):
        parts.append(f"## {title}\n\n")
        parts.append(f"| call | what holds | {' | '.join(versions)} |\n|---|---|{'---|' * len(versions)}\n")
        for row in rows:
            marks = ("✗" if found(runs[client.name], row) else "✓" for client in CLIENTS)
            parts.append(f"| `{row.method} {row.path}` | {row.what} | {' | '.join(marks)} |\n")
        parts.append("\n")
    parts.append(f"## Frameworks\n\n{frameworks.version}.\n\n| framework | what holds | |\n|---|---|---|\n")
    for key in frameworks.failures:
        framework, _, what = key.partition(": ")
        parts.append(f"| `{framework}` | {what} | {'✗' if wrong_with(frameworks, key) else '✓'} |\n")
    parts.append("\n## Where Sherlock differs from the schema on purpose\n\n")
    parts += [f"- {entry.why}\n" for entry in ACCEPTED]
    return "".join(parts)


def resource(path: str) -> str:
    """Of `/vector_stores/{vector_store_id}/files/{file_id}`: `Vector stores: files`."""
    first, *others = [part for part in path.split("/") if part and not part.startswith("{")]
    if first == "chat":
        return "Chat completions"
    inner = f": {others[0]}" if first == "vector_stores" and others else ""
    return f"{first}{inner}".replace("_", " ").capitalize()
