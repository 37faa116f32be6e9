"""Whether a quote can support a statement: it holds its words, its numbers, and says no where it says no.

Words alone cannot tell "may be opened" from "must not be opened", nor 11 weeks from 12. What is looked at
here is what can be seen without understanding: a quote that says the same of something else passes.
"""

import re
import unicodedata
from functools import lru_cache

from sherlock.rag.terms import terms

SUPPORT_THRESHOLD = 0.7
"""A statement is attributed when a quote holds at least this share of its terms."""
SAME_CLAUSE = 0.5
"""Two clauses speak of the same when the one holds this share of the terms of the other."""
MOST_COMPARED = 10_000
"""Pairs of clauses, some 10 ms of comparing; prose has a few, and what has more supports nothing."""


def words(text: str) -> frozenset[str]:
    """Its terms, with numbers in one notation: `1,250` and `1250` are the same, and `nine` and `9`."""
    return frozenset(terms(_NOT.sub(" not", _WORD.sub(_as_digits, _NUMBER.sub(_as_plain, text)))))


def support(statement: frozenset[str], quote: frozenset[str]) -> float:
    """The share of the statement's terms that the quote holds, 0..1.

    A single common term proves nothing, unless it is all that was said.
    """
    shared = statement & quote
    return len(shared) / len(statement) if len(shared) > 1 or len(statement) == len(shared) == 1 else 0.0


def agree(statement: str, quote: str) -> bool:
    """Whether the quote has every number of the statement, and negates what it negates and nothing else.

    A clause is compared with the clause of the other that shares most terms with it.
    """
    if numbers(statement) - numbers(quote):
        return False
    if len(clauses(statement)) * len(clauses(quote)) > MOST_COMPARED:
        return False
    for said, negated in clauses(statement):
        told, like = max(
            clauses(quote),
            key=lambda clause: (len(said & clause[0]), clause[1] == negated),
            default=(said, negated),
        )
        shared = len(said & told)
        if shared and shared >= SAME_CLAUSE * min(len(said), len(told)) and like != negated:
            return False
    return True


# ── numbers ─────────────────────────────────────────────────────────────────

_NUMBER = re.compile(r"\d+(?:[.,’'\u00a0\u202f]\d+)*")
_THOUSANDS = re.compile(r"\d{1,3}(?:[.,’'\u00a0\u202f]\d{3})+")
_WORD = re.compile(r"[^\W\d_]+")
_NOT = re.compile(r"(?<=[a-z])n['’]t\b", re.IGNORECASE)
# From two on: one is an article or a pronoun in too many languages. English, German, French.
_WORDS = (
    "two zwei deux, three drei trois, four vier quatre, five fünf cinq, six sechs, seven sieben sept, "
    "eight acht huit, nine neun neuf, ten zehn dix, eleven onze, twelve zwölf douze"
)
NUMBER_WORDS = {word: str(n) for n, words in enumerate(_WORDS.split(","), start=2) for word in words.split()}


@lru_cache(maxsize=4096)
def numbers(text: str) -> frozenset[str]:
    """Its numbers in one notation, whatever the digits, and with them those up to twelve that are words."""
    found = {_plain(match[0]) for match in _NUMBER.finditer(text)}
    words = (NUMBER_WORDS.get(match[0].casefold()) for match in _WORD.finditer(text))
    return frozenset(found.union(word for word in words if word))


def _as_plain(match: re.Match[str]) -> str:
    return _plain(match[0])


def _as_digits(match: re.Match[str]) -> str:
    return NUMBER_WORDS.get(match[0].casefold(), match[0])


def _plain(number: str) -> str:
    number = "".join(str(unicodedata.digit(c, c)) for c in number)
    if _THOUSANDS.fullmatch(number):
        number = "".join(re.findall(r"\d", number))
    return re.sub(r"^0+(?=\d)", "", number.replace(",", "."))


# ── negation ────────────────────────────────────────────────────────────────

_CLAUSE_END = re.compile(
    r"[;:()—–…。，；]|[,.!?](?=\s|$)|\n\s*\n|\b(?:but|whereas|although|unless|aber|sondern|mais|pero|sino|ma|mas|maar)\b",
    re.IGNORECASE,
)
# Left out are words that mean something else in another of the languages ("mai", "sin"), and those that only
# go with another one ("ne ... pas", "neither ... nor", "никогда не"), since negations are counted.
_NEGATION = re.compile(
    r"""
    \b (?: not | cannot | never | none | neither | without | nobody | nothing
         | no (?! \.? \s* \d) | [a-z]+ n['’]t
         | nicht | kein(?:e[rsnm]?)? | nie | niemals | weder | ohne | nirgends
         | pas | jamais | aucune? | sans
         | nunca | jamás | non | senza | não | sem
         | niet | geen | nooit | zonder | inte | aldrig | ikke | nie\s+ma | değil
         | не | нет | нельзя | без | δεν | δε | μην | χωρίς
         | لا | ليس | ليست | لم | لن | بدون ) \b
    | 不(?!锈|鏽) | 没 | 沒 | 無 | 无 | 未 | ません | ない | なかった | 않 | 없 | 못 | नहीं
    """,
    re.VERBOSE | re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def clauses(text: str) -> tuple[tuple[frozenset[str], bool], ...]:
    """The words of each clause that has any, and whether it is negated: by one negation, not by two."""
    parts = ((words(part), len(_NEGATION.findall(part)) % 2 == 1) for part in _CLAUSE_END.split(text))
    return tuple((found, negated) for found, negated in parts if found)
