"""Running headers and footers of a paged document: lines that pages repeat at their top or bottom."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

_DEEPEST: Final = 2  # lines from the top and from the bottom that are looked at
_FEWEST_LINES: Final = 6  # a page with less is a slide or a label, and all of it is kept
_FEWEST_PAGES: Final = 3
_SHARE: Final = 0.4  # of the pages; left and right pages may have headers of their own
_INTEGER: Final = re.compile(r"(?<![\d.,])\d{1,6}(?![\d.,]*\d)")


class RunningLines:
    """Learnt from some pages, dropped from all; the first page that has one keeps it, so that it is found."""

    def __init__(self, sample: Iterable[tuple[int, str]]) -> None:
        """`sample` is numbers and texts of pages."""
        counts: Counter[str] = Counter()
        pages = 0
        for number, page in sample:
            pages += 1
            lines = page.splitlines()
            if len(lines) >= _FEWEST_LINES:
                margins = (lines[:_DEEPEST], lines[-_DEEPEST:])
                counts.update(
                    {form for margin in margins for line in margin for form in _forms(line, number)}
                )
        least = max(_FEWEST_PAGES, pages * _SHARE)
        self._forms = {form for form, count in counts.items() if count >= least}
        self._kept: set[str] = set()

    def dropped(self, page: str, number: int) -> str:
        """The page without the lines that earlier pages had."""
        lines = page.splitlines(keepends=True)
        if not self._forms or len(lines) < _FEWEST_LINES:
            return page
        margins = {*range(_DEEPEST), *range(len(lines) - _DEEPEST, len(lines))}
        return "".join(
            line for at, line in enumerate(lines) if at not in margins or not self._was_seen(line, number)
        )

    def _was_seen(self, line: str, number: int) -> bool:
        forms = self._forms.intersection(_forms(line, number))
        seen = not forms.isdisjoint(self._kept)
        self._kept |= forms
        return seen


def _forms(line: str, number: int) -> Iterator[str]:
    """The line itself, and what stays of it when a number in it counts the pages."""
    plain = " ".join(line.split())
    if not plain:
        return
    yield plain
    numbers = [*_INTEGER.finditer(plain)]
    for found in {*numbers[:1], *numbers[-1:]}:
        yield f"{plain[: found.start()]}\0{int(found[0]) - number}{plain[found.end() :]}"
