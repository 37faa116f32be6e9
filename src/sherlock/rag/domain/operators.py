"""Operators that a search query may hold: `"exact phrase"`, `-word` and `-"phrase"`.

Most queries are prose or code, where quotes and hyphens mean other things, and a passage that is left out by
mistake is missed by nobody. So only what can hardly mean anything else is an operator:

- A phrase stands in quotes (`"…"`, `“…”`, `„…“`, `«…»`) that open after a blank and close before a blank or
  punctuation. `print("x")`, 5" and a quote that never closes are text.
- A word is excluded by a hyphen at the end of the query, where nothing follows but operators. It is written
  small and has three letters or more: `-5`, `-v`, `-Wall`, `--verbose`, `e-mail` and `flow -dash papers` are
  text. Beside a word that begins with a hyphen and is text, as in a command line, no word is excluded.
- A phrase behind a hyphen, `-"Wall"`, is excluded whatever it looks like and wherever it stands.
"""

import re
from dataclasses import dataclass

from sherlock.rag.domain.errors import InvalidRequest

MAX_OPERATORS = 32
"""In one query."""

_PHRASE = re.compile(
    r"""(?<!\S)(?P<hyphen>-?)
    (?: "([^"]+)" | “([^“”]+)” | „([^„“”]+)[“”] | «([^«»]+)» )
    (?=$|[\s.,;:!?)])""",
    re.VERBOSE,
)
_TOKEN = re.compile(r"\S+")
_EXCLUDED_WORD = re.compile(r"-([^\W\d_]+(?:[-'’][^\W\d_]+)*)[.,;:!?]*")
_FEWEST_LETTERS = 3


@dataclass(frozen=True, slots=True)
class Operators:
    """What the chunks that a query finds must hold, and must not."""

    phrases: tuple[str, ...] = ()
    """Each must be held: its words as they are written, side by side; case and punctuation do not count."""
    excluded_words: tuple[str, ...] = ()
    """None may be held, in no inflection."""
    excluded_phrases: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.phrases) + len(self.excluded_words) + len(self.excluded_phrases)


NO_OPERATORS = Operators()


def read_operators(query: str) -> tuple[str, Operators]:
    """The query's text without what it excludes, and its operators; one without any comes back as it is.

    The words of phrases stay in the text. Raises `InvalidRequest` for a query that only excludes, since
    nothing says which of all other chunks are wanted, and for one of too many operators.
    """
    phrases: list[str] = []
    excluded: list[str] = []
    gaps: list[tuple[int, int]] = []
    rest = query
    for quoted in _PHRASE.finditer(query):
        phrase = quoted[quoted.lastindex or 0]
        if any(character.isalnum() for character in phrase):
            (excluded if quoted["hyphen"] else phrases).append(phrase)
            start, end = quoted.span()
            gaps += [(start, end)] if quoted["hyphen"] else [(start, start + 1), (end - 1, end)]
            rest = rest[:start] + " " * (end - start) + rest[end:]
    words = _excluded_words(rest)
    operators = Operators(tuple(phrases), tuple(word[1] for word in words), tuple(excluded))
    if not operators:
        return query, operators
    if len(operators) > MAX_OPERATORS:
        raise InvalidRequest(f"A query may hold {MAX_OPERATORS} phrases and exclusions.", param="query")
    text = _without(query, [*gaps, *(word.span() for word in words)])
    if not any(character.isalnum() for character in text):
        raise InvalidRequest(
            "The query only says what to leave out; say what to look for as well.", param="query"
        )
    return text, operators


def _excluded_words(text: str) -> list[re.Match[str]]:
    """Matches of `_EXCLUDED_WORD`, each a whole token of `text`, last first."""
    tokens = [token for token in _TOKEN.finditer(text) if any(map(str.isalnum, token[0]))]
    words: list[re.Match[str]] = []
    while tokens and (word := _EXCLUDED_WORD.fullmatch(text, *tokens[-1].span())) and _is_small(word[1]):
        words.append(word)
        tokens.pop()
    return [] if any(token[0].startswith("-") for token in tokens) else words


def _is_small(word: str) -> bool:
    """Whether it is written small, and no flag of one or two letters; scripts without case have neither."""
    caseless = word.lower() == word.upper()
    return caseless or (word == word.lower() and len(word) >= _FEWEST_LETTERS)


def _without(text: str, gaps: list[tuple[int, int]]) -> str:
    kept, at = [], 0
    for start, end in sorted(gaps):
        kept.append(text[at:start])
        at = end
    return " ".join("".join([*kept, text[at:]]).split())
