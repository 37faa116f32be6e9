"""Sparse vectors as pgvector takes them."""

from collections.abc import Mapping
from heapq import nlargest
from operator import itemgetter

from pgvector import SparseVector

from sherlock.rag import terms

MAX_SPARSE_TERMS = 16_000
"""Non-zero elements that pgvector takes in a `sparsevec`."""


def sparse(weights: Mapping[int, float]) -> SparseVector:
    """Weights by term key as `sparsevec`; of more than it takes, the heaviest."""
    heaviest = nlargest(MAX_SPARSE_TERMS, weights.items(), key=itemgetter(1))
    return SparseVector(dict(heaviest), 1 << terms.TERM_BITS)
