"""The part of a long text that a question is about, by its keywords: what a cross-encoder is given to read.

The packaged cross-encoder hardly sees what stands behind some 200 tokens, and takes time for it all the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sherlock.rag.application.sentences import sentence_bounds
from sherlock.rag.terms import idf, terms

PART_CHARS = 1_000
"""Some 200 tokens of prose. A text of this length is read whole."""


def best_parts(question: str, texts: Sequence[str]) -> list[str]:
    """Of each text the whole sentences, about `PART_CHARS` long, that hold most of the question's terms.

    A term counts by its idf among the texts. Short texts come back as they are; where no term is held, or
    nothing ends a sentence, the beginning is as good as any part.
    """
    asked = frozenset(terms(question))
    cut = [_sentences(text, asked) for text in texts]
    df = Counter(term for each in cut for term in _held(each))
    weights = {term: idf(df[term], len(texts)) for term in df}
    return [_best(text, each, weights) for text, each in zip(texts, cut, strict=True)]


@dataclass(frozen=True, slots=True)
class _Sentence:
    start: int
    end: int
    held: frozenset[str]
    """Which of the question's terms."""


def _sentences(text: str, asked: frozenset[str]) -> list[_Sentence]:
    """A text that is read whole counts as one."""
    bounds = sentence_bounds(text) if len(text) > PART_CHARS else [(0, len(text))]
    return [_Sentence(start, end, asked.intersection(terms(text[start:end]))) for start, end in bounds]


def _best(text: str, cut: Sequence[_Sentence], weights: Mapping[str, float]) -> str:
    if len(text) <= PART_CHARS:
        return text
    start, end, best_weight, last = 0, 0, -1.0, 0
    for at, first in enumerate(cut):
        last = max(last, at)
        while last + 1 < len(cut) and cut[last + 1].end - first.start <= PART_CHARS:
            last += 1
        weight = sum(weights[term] for term in _held(cut[at : last + 1]))
        if weight > best_weight:
            start, end, best_weight = first.start, cut[last].end, weight
    return text[start:end]


def _held(cut: Sequence[_Sentence]) -> frozenset[str]:
    return frozenset().union(*(sentence.held for sentence in cut))
