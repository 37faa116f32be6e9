"""Lines with right-to-left words in the order they are read, from the order PDFium leaves them in.

PDFium orders a line by runs of letters of one direction, and takes digits with the signs beside them, and
each blank, for runs of their own: `ב-7.5` becomes `ב7.5-`, and two English words in a Hebrew line change
places. Its steps are undone here, which gives the line as it is seen from left to right; to that the Unicode
bidirectional algorithm (UAX #9) is applied, as is usual to get from what is seen back to what was written.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Final
from unicodedata import bidirectional, mirrored

_RIGHT: Final = frozenset({"R", "AL"})
_STRONG: Final = _RIGHT | {"L"}
_WEAK: Final = frozenset({"EN", "AN", "ES", "ET", "CS", "NSM", "BN"})
_PAIRS: Final = "()[]{}<>«»‹›"
_MIRROR: Final = {one: other for pair in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)
                  for one, other in (pair, pair[::-1])}  # fmt: skip


def as_read(text: str) -> str:
    """`text` as PDFium gives it, its lines with right-to-left letters in logical order."""
    if text.isascii() or not any(bidirectional(letter) in _RIGHT for letter in {*text}):
        return text
    return "".join(_line_as_read(line) for line in text.splitlines(keepends=True))


def _line_as_read(line: str) -> str:
    words = line.rstrip("\r\n")
    if not any(bidirectional(letter) in _RIGHT for letter in words):
        return line
    seen, from_right = _as_seen(words)
    strong = [kind for kind in map(bidirectional, seen) if kind in _STRONG]
    framed = strong[0] in _RIGHT and strong[-1] in _RIGHT  # as around an address, which has many runs
    return _reordered(seen, _levels(seen, from_right or framed)) + line[len(words) :]


# ── PDFium's order, undone (CPDF_TextPage::CloseTempLine, CFX_BidiString) ───


def _as_seen(words: str) -> tuple[str, bool]:
    """The characters from left to right, and whether the line as a whole goes from right to left."""
    runs = [(kind, "".join(run)) for kind, run in groupby(words, _run_kind)]
    kinds = [kind for kind, _ in runs]
    from_right = kinds.count("right") >= kinds.count("left")
    backwards = from_right
    seen = []
    for kind, run in runs:
        if kind == "right" or (kind == "neutral" and backwards):
            backwards = True
            seen.append(_mirrored(run[::-1]))
        else:
            backwards = backwards and kind == "weak"
            seen.append(run)
    return "".join(reversed(seen) if from_right else seen), from_right


def _run_kind(character: str) -> str:
    kind = bidirectional(character)
    if kind in _RIGHT:
        return "right"
    if kind in _WEAK:
        return "weak"
    return "left" if kind == "L" else "neutral"


# ── the bidirectional algorithm, for one line without embeddings ────────────


def _levels(line: str, from_right: bool) -> list[int]:
    """The embedding level of each character, by the rules of UAX #9 that they are named after."""
    base = "R" if from_right else "L"
    kinds = [*map(bidirectional, line)]
    _see_arabic_numbers(kinds)
    kinds = ["R" if kind == "AL" else kind for kind in kinds]
    for at, kind in enumerate(kinds):  # W1
        if kind in ("NSM", "BN"):
            kinds[at] = kinds[at - 1] if at else base
    for at in range(1, len(kinds) - 1):  # W4
        one, other = kinds[at - 1], kinds[at + 1]
        if one == other and (
            (kinds[at] == "CS" and one in ("EN", "AN")) or (kinds[at] == "ES" and one == "EN")
        ):
            kinds[at] = one
    _replace_runs(kinds, ("ET",), lambda before, after: "EN" if "EN" in (before, after) else "ON")  # W5
    strong = base
    for at, kind in enumerate(kinds):  # W7
        strong = kind if kind in ("L", "R") else strong
        if kind == "EN" and strong == "L":
            kinds[at] = "L"

    def side(kind: str | None) -> str:
        return base if kind is None else "L" if kind == "L" else "R"

    strongs = ("L", "R", "EN", "AN")
    neutral = {*kinds} - {*strongs}
    _replace_runs(  # N1, N2
        kinds, tuple(neutral), lambda before, after: side(before) if side(before) == side(after) else base
    )
    if from_right:  # I2
        return [1 if kind == "R" else 2 for kind in kinds]
    return [{"L": 0, "R": 1}.get(kind, 2) for kind in kinds]  # I1


def _see_arabic_numbers(kinds: list[str]) -> None:
    """W2: a number after Arabic. What was written before it is seen on its right."""
    left = [*accumulate(kinds, lambda strong, kind: kind if kind in _STRONG else strong, initial="")][1:]
    strong = ""
    for at in range(len(kinds) - 1, -1, -1):
        if kinds[at] == "EN" and strong == "AL" and left[at] != "L":
            kinds[at] = "AN"
        elif kinds[at] in _STRONG:
            strong = kinds[at]


def _replace_runs(
    kinds: list[str], wanted: Sequence[str], by: Callable[[str | None, str | None], str]
) -> None:
    """Replace each run of the wanted kinds by what `by` says of the kinds before and after it."""
    start = 0
    while start < len(kinds):
        end = start
        while end < len(kinds) and kinds[end] in wanted:
            end += 1
        if end > start:
            before = kinds[start - 1] if start else None
            kinds[start:end] = [by(before, kinds[end] if end < len(kinds) else None)] * (end - start)
        start = end + 1


def _reordered(line: str, levels: list[int]) -> str:
    """L2 and L4: from the highest level down, runs at or above it are turned round."""
    order = list(range(len(line)))
    for level in range(max(levels, default=0), 0, -1):
        turned: list[int] = []
        for high, group in groupby(order, lambda at: levels[at] >= level):  # noqa: B023 - used at once
            run = [*group]
            turned += run[::-1] if high else run
        order = turned
    return "".join(_mirrored(line[at]) if levels[at] % 2 else line[at] for at in order)


def _mirrored(run: str) -> str:
    return "".join(_MIRROR.get(sign, sign) if mirrored(sign) else sign for sign in run)
