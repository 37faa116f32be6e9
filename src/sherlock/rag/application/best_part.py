"""The part of a long text that a question is about, by its keywords: what a cross-encoder is given to read.

The packaged cross-encoder hardly sees what stands behind some 200 tokens, and takes time for it all the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from sherlock.rag.application.ground import Span, sentences
from sherlock.rag.terms import idf, terms

PART_CHARS = 1_000
"""Some 200 tokens of prose. A text of this length is read whole."""


def best_parts(question: str, texts: Sequence[str]) -> list[str]:
    """Of each text the whole sentences, about `PART_CHARS` long, that hold most of the question's terms.

    A term counts by its idf among the texts. Short texts come back as they are; where no term is held, or
    nothing ends a sentence, the beginning is as good as any part.
    """
    asked = frozenset(terms(question))
    cut = [sentences(text) if len(text) > PART_CHARS else [] for text in texts]
    held = [_held(spans) if spans else terms(text) for text, spans in zip(texts, cut, strict=True)]
    df = Counter(term for each in held for term in asked.intersection(each))
    weights = {term: idf(df[term], len(texts)) for term in df}
    return [_best(text, spans, weights) if spans else text for text, spans in zip(texts, cut, strict=True)]


def _best(text: str, spans: Sequence[Span], weights: Mapping[str, float]) -> str:
    start, end, best_weight = 0, 0, -1.0
    for at, first in enumerate(spans):
        last = at
        while last + 1 < len(spans) and spans[last + 1].end - first.start <= PART_CHARS:
            last += 1
        weight = sum(weights.get(term, 0.0) for term in _held(spans[at : last + 1]))
        if weight > best_weight:
            start, end, best_weight = first.start, spans[last].end, weight
    return text[start:end]


def _held(spans: Sequence[Span]) -> frozenset[str]:
    return frozenset().union(*(span.terms for span in spans))
