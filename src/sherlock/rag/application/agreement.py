"""Whether a quote can support a statement: it holds its words, its numbers and dates, and says no where it
says no.

Words alone cannot tell "may be opened" from "must not be opened", 11 weeks from 12, nor March from May. What
is looked at here can be seen without understanding: a quote that says the same of something else passes.
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
    """Whether the quote has the numbers, months and weekdays of the statement, numbers not the other way
    round, negates what it negates and nothing else, and has no opposite of a word instead of it.

    A clause is compared with the clause of the other that shares most terms with it.
    """
    if numbers(statement) - numbers(quote) or not same_dates(statement, quote) or swapped(statement, quote):
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
        if not shared or shared < SAME_CLAUSE * min(len(said), len(told)):
            continue
        if like != negated or opposed(said, told):
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


# ── where numbers stand ─────────────────────────────────────────────────────

_SENTENCE_END = re.compile(r"[.!?…](?=\s|$)|[。！？]|\n\s*\n")
_PIECE = re.compile(rf"(?P<number>{_NUMBER.pattern})|(?P<word>[^\W\d_]+)")
# "4 to 8", "4 °C to 8 °C", "between 4 and 8", "4–8": hardly more than a unit stands in between.
_RANGE = re.compile(
    rf"""
    ({_NUMBER.pattern}) [^\d.;!?]{{0,20}}? (?: [-–—] | \b(?:to|till|until|through|bis|à|hasta|до)\b )
    [^\d.;!?]{{0,3}} ({_NUMBER.pattern})
    | \b (?: between | zwischen | entre | между ) \s+ ({_NUMBER.pattern}) [^\d.;!?]{{0,20}}?
    \b (?: and | und | et | y | e | и ) \s+ ({_NUMBER.pattern})
    """,
    re.VERBOSE | re.IGNORECASE,
)


def swapped(statement: str, quote: str) -> bool:
    """Whether the quote has numbers of the statement the other way round: "9 to 17", "from 9, until 17"."""
    shared = numbers(statement) & numbers(quote)
    if len(shared) < 2:
        return False
    told = ranges(quote)
    if any(pair[::-1] in told for pair in ranges(statement) - told):
        return True
    common = words(statement) & words(quote)
    said = places(statement, common, shared)
    parts = [places(part, common, shared) for part in _SENTENCE_END.split(quote)]
    like = [part for part in parts if _without_numbers(part) == _without_numbers(said)]
    return bool(like) and said not in like


@lru_cache(maxsize=4096)
def ranges(text: str) -> frozenset[tuple[str, str]]:
    """Both ends of each range, the first one first."""
    found = (
        [_plain(end) for end in match.groups() if end]
        for match in _RANGE.finditer(_WORD.sub(_as_digits, text))
    )
    return frozenset((first, last) for first, last in found)


def places(text: str, common: frozenset[str], shared: frozenset[str]) -> list[str | frozenset[str]]:
    """The common terms in order, and between them the shared numbers: as sets, since lists have no order."""
    found: list[str | frozenset[str]] = []
    for piece in _PIECE.finditer(_WORD.sub(_as_digits, text)):
        if piece["word"]:
            found += [term for term in terms(piece["word"]) if term in common]
        elif (number := _plain(piece["number"])) in shared:
            if found and isinstance(found[-1], frozenset):
                found[-1] |= {number}
            else:
                found.append(frozenset({number}))
    return found


def _without_numbers(some: list[str | frozenset[str]]) -> list[str | int]:
    return [len(one) if isinstance(one, frozenset) else one for one in some]


# ── months and weekdays ─────────────────────────────────────────────────────

# English, German, French, Spanish. Only with a capital letter where a small one makes another word of it.
_MONTHS = (
    "january jan januar janvier enero, february feb februar février febrero, March Mar März mars marzo, "
    "april apr avril abril, May mai mayo, june jun juni juin junio, july jul juli juillet julio, "
    "august aug août agosto, september sep septembre septiembre, october oct oktober okt octobre octubre, "
    "november nov novembre noviembre, december dec dezember dez décembre diciembre"
)
_WEEKDAYS = (
    "monday montag lundi lunes, tuesday dienstag mardi martes, wednesday mittwoch mercredi miércoles, "
    "thursday donnerstag jeudi jueves, friday freitag vendredi viernes, saturday samstag sonnabend samedi "
    "sábado, sunday sonntag dimanche domingo"
)
_DATE_WORDS = {
    word: (kind, n)
    for kind, names in (("month", _MONTHS), ("weekday", _WEEKDAYS))
    for n, group in enumerate(names.split(","), start=1)
    for word in group.split()
}


def same_dates(statement: str, quote: str) -> bool:
    """Whether the quote has each month and weekday of the statement, a month perhaps as a number.

    One of them at least stands in the sentence of the quote that is most like the statement, if any does.
    """
    said, told = dates(statement), dates(quote)
    if not said:
        return True
    of_statement = words(statement)
    like = max(_SENTENCE_END.split(quote), key=lambda part: len(of_statement & words(part)))
    for kind in {kind for kind, _ in said}:
        here = {date for date in dates(like) if date[0] == kind}
        if here and not here & said:
            return False
    return all(kind == "month" and str(n) in numbers(quote) for kind, n in said - told)


@lru_cache(maxsize=4096)
def dates(text: str) -> frozenset[tuple[str, int]]:
    """The months and weekdays that are named; "May" is one only behind another word."""
    found = set()
    for match in _WORD.finditer(text):
        word = match[0]
        date = _DATE_WORDS.get(word) or _DATE_WORDS.get(word.casefold().removesuffix("s"))
        before = text[max(0, match.start() - 2) : match.start()].rstrip()
        if date and (word != "May" or before[-1:].isalnum()):
            found.add(date)
    return frozenset(found)


# ── opposites ───────────────────────────────────────────────────────────────

# English and German. Few, and of those that hardly have another meaning: what is no pair is judged by words.
_PAIRS = (
    "open/close, opened/shut, above/below, before/after, minimum/maximum, more/less, more/fewer, "
    "higher/lower, highest/lowest, longer/shorter, faster/slower, increase/decrease, rise/fall, "
    "inside/outside, empty/full, locked/unlocked, enabled/disabled, allowed/forbidden, "
    "allowed/prohibited, permitted/forbidden, permitted/prohibited, öffnen/schließen, "
    "geöffnet/geschlossen, offen/geschlossen, vor/nach, mindestens/höchstens, erlaubt/verboten"
)
OPPOSITES = frozenset(
    pair
    for one, other in (terms(pair) for pair in _PAIRS.split(", "))
    for pair in ((one, other), (other, one))
)
"""Terms and their opposites, either way round."""


def opposed(said: frozenset[str], told: frozenset[str]) -> bool:
    """Whether all that one clause says and the other does not is the opposite of a word there."""
    own = said - told
    return len(own) == 1 and any((*own, term) in OPPOSITES for term in told - said)


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
