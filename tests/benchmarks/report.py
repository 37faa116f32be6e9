"""`docs/benchmarks.md`: one section for each benchmark, replaced by its last run."""

import os
import platform
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_TITLE = """# Benchmarks

What the benchmarks in `tests/benchmarks` printed when they were last run and kept. Compare figures of one
section only: each comes from one run on one machine, and says how busy that was.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown; floats with as many digits as they deserve."""
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def keep(title: str, command: str, *paragraphs: str) -> None:
    """Print the section and put it into the document, in place of the one with the same title."""
    section = "\n\n".join((f"## {title}", f"`{command}`, {_machine()}.", *paragraphs)) + "\n"
    print("\n" + section)
    known = DOCUMENT.read_text("utf-8") if DOCUMENT.exists() else _TITLE
    parts = re.split(r"(?m)^(?=## )", known)
    others = [part.strip() + "\n" for part in parts if not part.startswith(f"## {title}\n")]
    DOCUMENT.write_text("\n".join([*others, section]), "utf-8")


def _machine() -> str:
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{time.strftime('%Y-%m-%d')}: {platform.system()} {platform.machine()}, {psutil.cpu_count()} cores, "
        f"{memory:.0f} GiB, Python {platform.python_version()}, load averages at the end {busy}"
    )


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
