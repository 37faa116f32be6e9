"""What a row about a framework is."""

from collections.abc import Callable
from dataclasses import dataclass

from ..python.rows import Given

Check = Callable[[Given], None]
"""The client of what it is given carries the base URL and the headers for the framework's own clients."""


@dataclass(frozen=True)
class FrameworkRow:
    framework: str
    """The package, as it is named in the index."""
    what: str
    check: Check

    @property
    def key(self) -> str:
        return f"{self.framework}: {self.what}"


def rows_in(rows: list[FrameworkRow], framework: str) -> Callable[[str], Callable[[Check], None]]:
    """A decorator that adds a check to `rows`, with what it holds."""
    return lambda what: lambda check: rows.append(FrameworkRow(framework, what, check))
