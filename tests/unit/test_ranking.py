"""Laws of the final order: fusion, several phrasings, reranking, threshold."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.domain import ranking
from sherlock.rag.domain.models import Candidate

COSINES = st.floats(-1, 1)
PARTS = st.floats(0, 1)


def candidate(
    chunk_id: int = 1, cosine: float = 0.5, keyword: float = 0.5, file_id: str = "file-a"
) -> Candidate:
    return Candidate(
        chunk_id=chunk_id,
        vector_store_id="vs_1",
        file_id=file_id,
        filename="a.txt",
        attributes=None,
        chunk_index=chunk_id,
        text=f"chunk {chunk_id}",
        start=0,
        end=1,
        page=None,
        heading=None,
        cosine=cosine,
        keyword=keyword,
    )


@st.composite
def candidate_lists(draw: st.DrawFn) -> list[Candidate]:
    scores = draw(st.lists(st.tuples(COSINES, PARTS), max_size=12))
    return [candidate(number, cosine, keyword) for number, (cosine, keyword) in enumerate(scores)]


@given(COSINES, PARTS, PARTS)
def test_a_fused_score_lies_in_0_to_1(cosine: float, keyword: float, alpha: float) -> None:
    assert 0 <= ranking.fused_score(cosine, keyword, alpha) <= 1


@given(COSINES, COSINES, PARTS)
def test_at_alpha_0_the_cosine_has_no_say(one: float, other: float, keyword: float) -> None:
    assert ranking.fused_score(one, keyword, 0) == ranking.fused_score(other, keyword, 0)


@given(COSINES, PARTS, PARTS)
def test_at_alpha_1_the_keywords_have_no_say(cosine: float, one: float, other: float) -> None:
    assert ranking.fused_score(cosine, one, 1) == ranking.fused_score(cosine, other, 1) == max(cosine, 0)


@given(st.tuples(COSINES, PARTS), st.tuples(COSINES, PARTS), PARTS)
def test_who_is_at_least_as_good_in_both_is_at_least_as_good(
    one: tuple[float, float], other: tuple[float, float], alpha: float
) -> None:
    worse = (min(one[0], other[0]), min(one[1], other[1]))
    assert ranking.fused_score(*worse, alpha) <= ranking.fused_score(*one, alpha) + 1e-12


def test_a_cosine_that_rounding_pushed_over_1_is_1() -> None:
    assert ranking.fused_score(1.0000002, 0, 1) == 1


def test_fusion_by_hand() -> None:
    expected = 0.7 * 0.6 + 0.3 * (1 - math.exp(-3 * 0.4))
    assert ranking.fused_score(0.6, 0.4, 0.7) == pytest.approx(expected)


@given(candidate_lists(), PARTS)
def test_fuse_orders_and_loses_nobody(candidates: list[Candidate], alpha: float) -> None:
    fused = ranking.fuse(candidates, alpha)
    assert sorted(c.chunk_id for c, _ in fused) == [c.chunk_id for c in candidates]
    scores = [score for _, score in fused]
    assert scores == sorted(scores, reverse=True)


@given(candidate_lists(), PARTS, st.randoms())
def test_the_order_of_arrival_does_not_matter(candidates: list[Candidate], alpha: float, random) -> None:
    shuffled = random.sample(candidates, len(candidates))
    assert ranking.fuse(shuffled, alpha) == ranking.fuse(candidates, alpha)


def test_ties_stand_by_file_and_place() -> None:
    tied = [candidate(2, file_id="file-b"), candidate(3), candidate(1), candidate(0, file_id="file-c")]
    assert [c.chunk_id for c, _ in ranking.fuse(tied, 0.7)] == [1, 3, 2, 0]


@given(candidate_lists(), candidate_lists(), PARTS)
def test_of_two_phrasings_the_better_counts(
    one: list[Candidate], other: list[Candidate], alpha: float
) -> None:
    both = {c.chunk_id: score for c, score in ranking.fuse([*one, *other], alpha)}
    for phrasing in (one, other):
        for found, score in ranking.fuse(phrasing, alpha):
            assert both[found.chunk_id] >= score
    assert len(both) == len({c.chunk_id for c in [*one, *other]})


@given(candidate_lists(), st.lists(PARTS, max_size=12), PARTS, PARTS)
def test_reranking_keeps_everybody_in_0_to_1_and_in_order(
    candidates: list[Candidate], relevances: list[float], alpha: float, weight: float
) -> None:
    fused = ranking.fuse(candidates, alpha)
    read = relevances[: len(fused)]
    results = ranking.apply_rerank(fused, read, weight)
    assert sorted(r.candidate.chunk_id for r in results) == [c.chunk_id for c in candidates]
    scores = [result.score for result in results]
    assert all(0 <= score <= 1 for score in scores)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(scores))
    # Those that were read come first, and the others keep the order they had.
    assert [r.rerank is not None for r in results] == [True] * len(read) + [False] * (len(fused) - len(read))
    assert [r.candidate for r in results[len(read) :]] == [c for c, _ in fused[len(read) :]]
    assert {r.candidate.chunk_id: r.fused for r in results} == {c.chunk_id: score for c, score in fused}


@given(candidate_lists(), PARTS)
def test_without_reranking_the_fused_scores_stand(candidates: list[Candidate], alpha: float) -> None:
    fused = ranking.fuse(candidates, alpha)
    results = ranking.apply_rerank(fused, [])
    assert [(r.candidate, r.score, r.fused, r.rerank) for r in results] == [(c, s, s, None) for c, s in fused]


def test_the_reranker_can_turn_the_order() -> None:
    fused = ranking.fuse([candidate(1, 0.6, 0.5), candidate(2, 0.58, 0.5)], 0.7)
    assert [r.candidate.chunk_id for r in ranking.apply_rerank(fused, [0.01, 0.99])] == [2, 1]


def test_the_reranker_alone_does_not_decide() -> None:
    clear = [candidate(1, 0.95, 0.9), candidate(2, 0.05, 0.0)]
    fused = ranking.fuse(clear, 0.7)
    assert [r.candidate.chunk_id for r in ranking.apply_rerank(fused, [0.3, 0.7])] == [1, 2]


@given(candidate_lists(), st.lists(PARTS, max_size=12), PARTS)
def test_the_threshold_acts_on_the_fused_score(
    candidates: list[Candidate], relevances: list[float], threshold: float
) -> None:
    fused = ranking.fuse(candidates, 0.7)
    kept = ranking.apply_rerank(ranking.reaching(threshold, fused), relevances)
    assert {r.candidate.chunk_id for r in kept} == {c.chunk_id for c, score in fused if score >= threshold}


def test_a_score_does_not_depend_on_what_else_was_found() -> None:
    alone = ranking.fuse([candidate(1)], 0.7)[0][1]
    among = dict(
        (c.chunk_id, s) for c, s in ranking.fuse([candidate(1), replace(candidate(2), cosine=0.99)], 0.7)
    )
    assert among[1] == alone


def texts(*given: tuple[str, str]) -> list[tuple[Candidate, float]]:
    """`(file, text)` of chunks, best first, each in a store of its own."""
    return [
        (
            replace(candidate(number, file_id=file), text=text, vector_store_id=f"vs_{number}"),
            1 - number / 100,
        )
        for number, (file, text) in enumerate(given)
    ]


def kept(*given: tuple[str, str]) -> list[int]:
    return [found.chunk_id for found, _ in ranking.distinct(texts(*given))]


def test_a_copy_in_another_file_tells_nothing_new() -> None:
    assert kept(("a", "It opens at\n nine."), ("b", "It closes."), ("c", "It  opens at nine. ")) == [0, 1]


def test_a_part_of_a_better_chunk_of_the_file_in_another_store_tells_nothing_new() -> None:
    assert kept(("a", "It opens at nine. Come in."), ("a", "Come in."), ("b", "Come in.")) == [0, 2]
    assert kept(("a", "Come in."), ("a", "It opens at nine. Come in.")) == [0, 1], "the longer one does"


def test_what_differs_in_a_word_or_a_number_stays() -> None:
    versions = ["Leave is 30 days.", "Leave is 25 days.", "Leave is not 30 days.", "Leave is -30 days."]
    assert kept(*((f"file-{text}", text) for text in versions)) == [0, 1, 2, 3]
    assert kept(("a", "cart before"), ("a", "art before")) == [0, 1], "the end of a word is no text"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text("xy ", max_size=5)), max_size=12))
def test_what_is_left_out_stands_in_what_is_kept(given_texts: list[tuple[str, str]]) -> None:
    fused = texts(*given_texts)
    left = ranking.distinct(fused)
    assert left == [pair for pair in fused if pair in left], "in order, as they were"
    assert ranking.distinct(left) == left
    words = [f" {' '.join(found.text.split())} " for found, _ in left]
    for found, score in fused:
        text = f" {' '.join(found.text.split())} "
        assert any(text in other for other, pair in zip(words, left, strict=True) if pair[1] >= score)
