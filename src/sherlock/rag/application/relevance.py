"""Whether anything that was found bears on the question: something is nearest, whatever is asked."""

import re
from collections.abc import Sequence

from sherlock.rag.application.small_talk import is_small_talk
from sherlock.rag.domain.models import Result
from sherlock.rag.domain.ranking import fused_score
from sherlock.rag.terms import terms

ALPHA = 0.7
RELEVANT = 0.28
"""Fused score at `ALPHA`. all-MiniLM-L6-v2, stores of 64 to 387 chunks, with all the rules below: of 184
questions that the store can answer (own 64, scifact 60, cranfield 60) 1 is given nothing; of 540 others
(those of the other collections, and 60 everyday ones) 465 are recognised. By scores alone, 1 and 516; by
scores at 0.25 these are 1 and 498, at 0.32 they are 6 and 526.
"""
RELEVANT_KEYWORD = 0.1
"""For searches without vectors, which tell less: 1 of the 184 and 340 of the 540."""
HELD_TERMS, HELD_SHARE = 2, 0.5
"""A passage with so many terms of the question, and such a share, is relevant whatever its score: a long one
that speaks of many things scores low. It costs 16 of the 540.
"""
SHARED_WORDS, SHARED_SHARE = 2, 0.2
"""Words of a question, and their share of all its words, that passages hold where both are in one language:
"the" and "is" will do. 19 of 20 German, French and Spanish questions to an English store score below
`RELEVANT`, though it can answer them; none of them has so many words in common with what is found, most of
the English ones do.
"""
FEW_WORDS = 50
"""Where all that was found has fewer different words, a file of two sentences, one in common will do."""


def any_relevant(question: str, results: Sequence[Result], *, dense: bool) -> bool:
    """Whether one of the results may say something about the question; then the others may, too.

    Judged by both scores at one alpha, whatever the search was asked for; by keywords alone where the
    search was not `dense`, so that there are no cosines. Scores say nothing where question and files are in
    different languages, nor of what is asked of the files as such ("Summarise this"): then the model may
    judge for itself.
    """
    asked = frozenset(terms(question))
    if not results or any(is_relevant(result, asked, dense=dense) for result in results):
        return bool(results)
    if is_small_talk(question):
        return False
    return _OF_THE_FILES.search(question) is not None or not share_language(question, results)


def is_relevant(result: Result, asked: frozenset[str], *, dense: bool) -> bool:
    """`asked` are the terms of the question."""
    found = result.candidate
    scored = found.keyword >= RELEVANT_KEYWORD
    if dense:
        scored = fused_score(found.cosine, found.keyword, ALPHA) >= RELEVANT
    return scored or len(asked.intersection(terms(found.text))) >= max(HELD_TERMS, HELD_SHARE * len(asked))


def share_language(question: str, results: Sequence[Result]) -> bool:
    """Whether the question has so many words in common with what was found that both are in one language.

    Where words are not parted by blanks it has hardly any.
    """
    asked = _words(question)
    found = set().union(*(_words(result.candidate.text) for result in results))
    needed = 1 if len(found) < FEW_WORDS else max(SHARED_WORDS, SHARED_SHARE * len(asked))
    return len(asked & found) >= needed


def _words(text: str) -> set[str]:
    return {match[0].casefold() for match in _WORD.finditer(text)}


_WORD = re.compile(r"[^\W\d_]+")
# English, German, French, Spanish. A word too many costs little.
_OF_THE_FILES = re.compile(
    r"""
    \b (?: this | these | above | files? | documents? | docs? | pdfs? | texts? | attach\w* | upload\w*
          | passages? | pages? | chapters? | sections? | summar\w* | tl;?dr | overview | outline
          | translat\w* | rephras\w* | answers?
          | diese\w* | datei\w* | dokument\w* | zusammenfass\w* | fasse? | übersetz\w* | antwort\w*
          | fichiers? | résum\w* | tradui\w* | réponses?
          | est[eao]s? | archivos? | documentos? | resum\w* | traduc\w* | respuestas? ) \b
    """,
    re.VERBOSE | re.IGNORECASE,
)
