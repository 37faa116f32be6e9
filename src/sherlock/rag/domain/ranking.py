"""From two scores a chunk to one order: fusion, several phrasings, threshold, copies, reranking.

Every score lies in 0..1 and means the same whatever else was found, so that a threshold suits every query.
That rules out ranks (reciprocal rank fusion) and scaling by what happened to be found (min-max).
"""

import math
from collections.abc import Iterable, Sequence

from sherlock.rag.domain.models import Candidate, Result

KEYWORD_LIFT = 3.0
"""Lifts keyword scores to the range of cosines: good hits reach 0.18 to 0.69 of the largest BM25 possible."""

RERANK_WEIGHT = 0.3
"""The cross-encoder's share of a reranked score. nDCG@10 at alpha 0.7 with ms-marco-MiniLM-L-12-v2 over
the first 8 candidates, for shares of 0, 0.2, 0.3, 0.5, 1: cranfield 0.561, 0.567, 0.567, 0.564, 0.561;
scifact (150 queries) 0.732, 0.743, 0.745, 0.747, 0.726. Over the first 10, a share of 1 is below one of 0.
"""


def fused_score(cosine: float, keyword: float, alpha: float) -> float:
    """`alpha` of the dense score and the rest of the keyword score, 0..1; grows with either."""
    dense = min(max(cosine, 0.0), 1.0)
    lexical = 1 - math.exp(-KEYWORD_LIFT * min(max(keyword, 0.0), 1.0))
    return alpha * dense + (1 - alpha) * lexical


def fuse(candidates: Iterable[Candidate], alpha: float) -> list[tuple[Candidate, float]]:
    """Each chunk once, with the best score it has, best first; ties by file and place, so that pages repeat.

    A chunk comes several times when several phrasings of a question found it.
    """
    best: dict[int, tuple[Candidate, float]] = {}
    for candidate in candidates:
        score = fused_score(candidate.cosine, candidate.keyword, alpha)
        known = best.get(candidate.chunk_id)
        if known is None or score > known[1]:
            best[candidate.chunk_id] = (candidate, score)
    return sorted(best.values(), key=lambda pair: (-pair[1], _place(pair[0])))


def reaching(threshold: float, fused: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Those whose fused score reaches the threshold.

    Judged before reranking: a threshold means the same with and without a reranker, busy or not.
    """
    return [(candidate, score) for candidate, score in fused if score >= threshold]


def distinct(fused: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Without the chunks that would tell nothing new, so that copies do not fill the page.

    That is a chunk whose text, but for blanks, one before it has; or one that lies in a better chunk that
    another store has of the same file, which was cut differently there. Texts that differ in a single word or
    number both stay: they may be two versions that contradict each other.
    """
    kept: list[tuple[Candidate, float]] = []
    seen: set[str] = set()
    told: dict[str, list[tuple[str, str]]] = {}
    for candidate, score in fused:
        text = f" {' '.join(candidate.text.split())} "
        of_file = told.setdefault(candidate.file_id, [])
        store = candidate.vector_store_id
        if text in seen or any(store != other and text in longer for other, longer in of_file):
            continue
        seen.add(text)
        of_file.append((store, text))
        kept.append((candidate, score))
    return kept


def apply_rerank(
    fused: Sequence[tuple[Candidate, float]], rerank: Sequence[float], weight: float = RERANK_WEIGHT
) -> list[Result]:
    """Mix the cross-encoder's scores of the first `len(rerank)` chunks of `fused` into theirs; best first.

    A chunk that the cross-encoder has not read counts as if it had got 0, and so stays behind those it has
    read, which came first anyway. Without any scores the fused ones stand as they are.
    """
    if not rerank:
        return [Result(candidate, score, score) for candidate, score in fused]
    results = [
        Result(candidate, weight * relevance + (1 - weight) * score, score, relevance)
        for (candidate, score), relevance in zip(fused, rerank, strict=False)
    ]
    results.sort(key=lambda result: (-result.score, _place(result.candidate)))
    unread = fused[len(rerank) :]
    return results + [Result(candidate, (1 - weight) * score, score) for candidate, score in unread]


def _place(candidate: Candidate) -> tuple[str, int, str]:
    return candidate.file_id, candidate.chunk_index, candidate.vector_store_id
