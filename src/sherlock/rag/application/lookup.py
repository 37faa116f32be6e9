"""Queries that look something up by its exact name: error codes, part numbers, identifiers, files.

An encoder knows nothing of `E0A3F-07`: its vector is near whatever looks as odd. There keywords decide.
"""

from collections.abc import Sequence

import regex

from sherlock.rag.terms import UNSPACED

POWER = 4
"""The dense score's weight is raised to this: 0.7 becomes 0.24, while 0 and 1 stay what they are."""
MOST_CAPITALS = 3
"""Words in capitals alone of which a query may consist: with more somebody is shouting."""

# Where words are not spaced, where a name begins and ends cannot be told.
_UNSPACED = regex.compile(f"[{UNSPACED}]")
_BARE = regex.compile(r"[\p{L}\p{N}_](?:.*[\p{L}\p{N}_])?")
# With a digit or an underscore, a capital behind a small letter, or a point, slash and the like inside.
_CODE = regex.compile(r"\p{N}|_|\p{Ll}\p{Lu}|[\p{L}\p{N}][./\\:@#$]+[\p{L}\p{N}]")
_CAPITALS = regex.compile(r"\p{Lu}{2,}(?:[^\p{L}\p{N}\s]+\p{Lu}+)*")


def is_lookup(text: str) -> bool:
    """Whether the text is nothing but such names."""
    words = [bare[0] for word in text.split() if (bare := _BARE.search(word))]
    if not words or _UNSPACED.search(text):
        return False
    capitals = [word for word in words if not _CODE.search(word)]
    return len(capitals) <= MOST_CAPITALS and all(map(_CAPITALS.fullmatch, capitals))


def weight(alpha: float, texts: Sequence[str]) -> float:
    """What the dense score of these phrasings weighs where `alpha` was asked for; grows with it, 0..1."""
    return alpha**POWER if all(map(is_lookup, texts)) else alpha
