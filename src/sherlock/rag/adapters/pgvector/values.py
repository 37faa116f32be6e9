"""Sparse vectors and page breaks as the database takes them."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import itemgetter

from pgvector import SparseVector

from sherlock.rag import terms
from sherlock.rag.domain.models import PageBreaks

MAX_SPARSE_TERMS = 16_000
"""Non-zero elements that pgvector takes in a `sparsevec`."""


def sparse(weights: Mapping[int, float]) -> SparseVector:
    """Weights by term key as `sparsevec`; of more than it takes, the heaviest."""
    heaviest = nlargest(MAX_SPARSE_TERMS, weights.items(), key=itemgetter(1))
    return SparseVector(dict(heaviest), 1 << terms.TERM_BITS)


def flat_page_breaks(breaks: PageBreaks) -> list[int | None]:
    """Offset and page in turn, for an `int[]`."""
    return [number for pair in breaks for number in pair]


def page_breaks(flat: Sequence[int]) -> PageBreaks:
    """What `flat_page_breaks` was made of."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))
