"""`docs/operations.md` lists every metric that the code makes, with its unit, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

UNITS_OF_CALLS = {"timer": "s"}
"""What makes an instrument without naming its unit."""


def made() -> Iterator[tuple[str, str]]:
    """Name and unit of each instrument, wherever in the sources it is made."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called.startswith("create_") and str(node.args[0].value).startswith("sherlock."):
                given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "unit")]
                yield node.args[0].value, ast.literal_eval(given[0])
            elif called in UNITS_OF_CALLS:
                yield node.args[0].value, UNITS_OF_CALLS[called]


def listed() -> dict[str, str]:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    return dict(re.findall(r"^\| `(sherlock\.[a-z_.]+)` \| (\S+) \|", text, re.MULTILINE))


def test_the_table_of_metrics_is_what_the_code_makes() -> None:
    instruments = list(made())
    assert len(instruments) == len(dict(instruments)), "an instrument is made twice"
    assert listed() == dict(instruments)
