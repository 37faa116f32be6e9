"""The keyword leg's analyser: text -> terms -> keys and BM25 weights. Pure functions.

A chunk stores `document_weights`, a query asks with `query_weights`, and their dot product is BM25: Robertson
and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), section 3.4, with the idf of
Lucene's `BM25Similarity`, which is never negative. The average length is a constant, so that a stored weight
need not change when other chunks come or go.
"""

import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain

import regex
import Stemmer

K1 = 1.2
"""How soon repeating a term stops to count."""
B = 0.75
"""How much a long chunk is held against it: 0 not at all, 1 in full."""
AVERAGE_TERMS = 150.0
"""Terms of an average chunk; 100 to 180 measure alike."""

TERM_BITS = 29
"""Width of a term's key, as wide as `sparsevec` can count: fewer than 18 bits lose quality to collisions."""

# Scripts that put no space between words, and Hangul, which glues particles to them.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_TOKEN = regex.compile(
    rf"""
    (?P<unspaced> [{UNSPACED}] [{UNSPACED}\p{{M}}ー]* )
    | [[\p{{L}}\p{{N}}_]--[{UNSPACED}]] [[\p{{L}}\p{{N}}\p{{M}}_]--[{UNSPACED}]]*
    """,
    regex.VERBOSE | regex.VERSION1,
)
# The same for text of ASCII alone, where none but its last case arises, in less than half the time.
_ASCII_TOKEN = re.compile(r"[A-Za-z0-9_]+")
# What else stands in most English text: quotes, dashes and the like, which end a word as a blank does.
_TYPOGRAPHY = dict.fromkeys(
    map(ord, "\u00a0\u00ab\u00bb\u2010\u2011\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026"), " "
)
# What an identifier is made of: HTTP|Server|2, read|file, x|86.
_PART = regex.compile(
    r"\p{Lu}+(?!\p{Ll}) | \p{Lu}?[\p{Ll}\p{M}]+ | \p{N}+ | [\p{Lo}\p{Lm}\p{M}]+ | \p{Lu}", regex.VERBOSE
)
_MARK = regex.compile(r"\p{M}+")
# Here accents and points may be left out in writing; elsewhere (Devanagari, Tamil) a mark is a vowel.
_OPTIONAL_MARKS = regex.compile(r"[\p{Latin}\p{Greek}\p{Cyrillic}\p{Arabic}\p{Hebrew}]")
_STEMMERS = (
    ("english", regex.compile(r"^[a-z]+$")),
    ("russian", regex.compile(r"\p{Cyrillic}")),
    ("arabic", regex.compile(r"\p{Arabic}")),
    ("greek", regex.compile(r"\p{Greek}")),
)
_ENGLISH_STOP_WORDS = """
    a about an and are as at be but by can could did do does for from had has have he how i if in into is it
    its no not of on or our she should so such than that the their then there these they this to was we were
    what when where which who why will with would you your
"""
_STOP_WORDS = frozenset(_ENGLISH_STOP_WORDS.split())
_own = threading.local()


def terms(text: str) -> list[str]:
    """The text's terms in order, repeats kept: folded, stemmed by script, without English stop words.

    Text without spaces becomes overlapping pairs of characters. An identifier (`readFile`, `MAX_SIZE`, `x86`)
    becomes its parts and itself. Any string will do, lone surrogates and NUL included.
    """
    plain = text if text.isascii() else text.translate(_TYPOGRAPHY)
    if plain.isascii():
        return [*chain.from_iterable(map(_word_terms, _ASCII_TOKEN.findall(plain)))]
    found: list[str] = []
    for token in _TOKEN.finditer(unicodedata.normalize("NFC", text)):
        found += _pairs(token[0]) if token["unspaced"] else _word_terms(token[0])
    return found


def folded(text: str) -> str:
    """The text as phrases are looked for in it: its words in order, whole, without differences of case.

    Words stand between bars, and so does a run of a script without spaces, in which a phrase may begin or end
    anywhere.
    """
    return f"|{'|'.join(token for token, _ in _folded(text))}|"


def folded_phrase(phrase: str) -> str:
    """What stands in `folded` of every text that holds the phrase, and of no other; empty without words."""
    tokens = _folded(phrase)
    if not tokens:
        return ""
    (_, opens_within), (_, ends_within) = tokens[0], tokens[-1]
    words = "|".join(token for token, _ in tokens)
    return f"{'' if opens_within else '|'}{words}{'' if ends_within else '|'}"


def phrase_keys(phrase: str) -> list[frozenset[int]]:
    """For each telling word of the phrase the keys, as of `term_key`, of which a text that holds it has one.

    A word has a second key where the text may write it as an identifier (`readfile`, `readFile`).
    """
    found: dict[frozenset[int], None] = {}
    for token, unspaced in _folded(phrase):
        if unspaced:
            pairs = _pairs(token) if len(token) > 1 else []
            found |= dict.fromkeys(frozenset({_cached_key(pair)}) for pair in pairs)
        elif token not in _STOP_WORDS:
            found[frozenset({_cached_key(_stem(token)), _cached_key(token.replace("_", ""))})] = None
    return list(found)


def is_one_word(text: str) -> bool:
    """Whether a text is a single word that has a term of its own, and so is held wherever its key is."""
    tokens = _folded(text)
    return len(tokens) == 1 and not tokens[0][1] and tokens[0][0] not in _STOP_WORDS


def term_key(term: str) -> int:
    """The term's number, 0 up to 2**29 - 1: a position in the sparse vectors."""
    digest = blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> (32 - TERM_BITS)


@lru_cache(maxsize=65_536)
def store_key(store_no: int, key: int) -> int:
    """`term_key` of a term as it is listed for one store: a signed 32-bit integer.

    Within a store different terms have different keys, since each step can be undone; terms of different
    stores may meet, so that whoever looks one up has to ask for the store as well.
    """
    mixed = _mix(key ^ _mix(store_no & 0xFFFFFFFF))
    return mixed - (1 << 32) if mixed >> 31 else mixed


def document_weights(document_terms: Sequence[str]) -> dict[int, float]:
    """BM25's part that belongs to the chunk, by term key: greater than 0, less than K1 + 1."""
    saturation = K1 * (1 - B + B * len(document_terms) / AVERAGE_TERMS)
    return {key: count * (K1 + 1) / (count + saturation) for key, count in _counted(document_terms).items()}


def query_weights(query_terms: Iterable[str], df: Mapping[int, int], n: int) -> dict[int, float]:
    """BM25's part that belongs to the query, by term key: idf, times how often the term was asked for.

    `df` counts the chunks that hold a term, by its key, out of `n`; terms it does not know count as unseen.
    """
    return {key: count * idf(df.get(key, 0), n) for key, count in _counted(query_terms).items()}


def idf(df: int, n: int) -> float:
    """How telling a term is that stands in `df` of `n` chunks; greater than 0, even if `n` is out of date."""
    return math.log(1 + (max(n - df, 0) + 0.5) / (df + 0.5))


def best_score(weights: Mapping[int, float]) -> float:
    """What BM25 stays under for this query, whatever the chunk: score / best_score lies in 0..1."""
    return (K1 + 1) * sum(weights.values())


def _counted(some_terms: Iterable[str]) -> Counter[int]:
    return Counter(map(_cached_key, some_terms))


_cached_key = lru_cache(maxsize=65_536)(term_key)


def _mix(x: int) -> int:
    """Scatter 32 bits, one to one: the finalizer of MurmurHash3 (Austin Appleby, public domain)."""
    x = ((x ^ x >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ x >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ x >> 16


def _folded(text: str) -> list[tuple[str, bool]]:
    """The text's words, folded; and whether each is a run of a script without spaces."""
    found = []
    for token in _TOKEN.finditer(unicodedata.normalize("NFC", text)):
        unspaced = token["unspaced"] is not None
        if word := _fold(token[0]) if unspaced else _folded_word(token[0]):
            found.append((word, unspaced))
    return found


@lru_cache(maxsize=65_536)
def _folded_word(token: str) -> str:
    return _fold(token).strip("_")


@lru_cache(maxsize=65_536)
def _word_terms(token: str) -> tuple[str, ...]:
    word = _fold(token).strip("_")
    if not word:
        return ()
    if not _is_identifier(token):
        return () if word in _STOP_WORDS else (_stem(word),)
    parts = [_fold(part) for part in _PART.findall(token)]
    if len(parts) < 2:
        return (_stem(word),)
    telling = [_stem(part) for part in parts if len(part) > 1 and part not in _STOP_WORDS]
    return (*telling, word.replace("_", ""))


def _is_identifier(token: str) -> bool:
    if token.isalpha():
        return not (token.islower() or token.istitle())
    return not token.isdigit()


def _pairs(token: str) -> list[str]:
    run = _fold(token)
    return [run[at : at + 2] for at in range(max(1, len(run) - 1))]


def _fold(word: str) -> str:
    """Without differences of case, width and, where they are optional, accents."""
    word = unicodedata.normalize("NFKC", word).casefold()
    if not word.isascii() and _OPTIONAL_MARKS.search(word):
        word = _MARK.sub("", unicodedata.normalize("NFKD", word))
        word = unicodedata.normalize("NFC", word)
    return word


def _stem(word: str) -> str:
    for language, script in _STEMMERS:
        if script.search(word):
            stem: str = _stemmer(language).stemWord(word)
            return stem
    return word


def _stemmer(language: str) -> Stemmer.Stemmer:
    """One for each thread: a stemmer keeps the word it works on in itself."""
    try:
        stemmers: dict[str, Stemmer.Stemmer] = _own.stemmers
    except AttributeError:
        # Their own cache is off, since `_word_terms` has one.
        stemmers = _own.stemmers = {name: Stemmer.Stemmer(name, 0) for name, _ in _STEMMERS}
    return stemmers[language]
