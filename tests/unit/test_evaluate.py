"""The measures against worked examples, and reading a collection."""

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.evaluate import load_documents, load_queries, ndcg_at_k, recall_at_k, reciprocal_rank

DOCUMENTS = [f"d{number}" for number in range(8)]
GRADES = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 4).map(float))
RANKINGS = st.permutations(DOCUMENTS)


def test_ndcg_of_two_swapped_documents() -> None:
    grades = {"a": 2.0, "b": 1.0}
    assert ndcg_at_k(["a", "b"], grades, 10) == 1
    swapped = (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))
    assert ndcg_at_k(["b", "a"], grades, 10) == pytest.approx(swapped)


def test_ndcg_discounts_by_rank() -> None:
    assert ndcg_at_k(["x", "y", "a"], {"a": 1.0}, 10) == pytest.approx(1 / 2)
    assert ndcg_at_k(["x", "y", "a"], {"a": 1.0}, 2) == 0


def test_ndcg_cuts_the_ideal_too() -> None:
    relevant = {name: 1.0 for name in "abcdefghijkl"}
    assert ndcg_at_k(list("abcdefghij"), relevant, 10) == 1


def test_recall_counts_relevant_documents_only() -> None:
    assert recall_at_k(["a", "x", "b"], {"a": 1.0, "b": 3.0, "c": 1.0, "x": 0.0}, 3) == pytest.approx(2 / 3)
    assert recall_at_k(["a", "x", "b"], {"a": 1.0, "b": 3.0}, 1) == 0.5


def test_reciprocal_rank_of_the_first_relevant_document() -> None:
    assert reciprocal_rank(["x", "y", "a", "b"], {"a": 1.0, "b": 4.0, "x": 0.0}, 10) == pytest.approx(1 / 3)
    assert reciprocal_rank(["x", "y", "a"], {"a": 1.0}, 2) == 0


@pytest.mark.parametrize("measure", [ndcg_at_k, recall_at_k, reciprocal_rank])
def test_nothing_found_and_nothing_relevant_are_0(measure) -> None:
    assert measure([], {"a": 1.0}, 10) == 0
    assert measure(["a"], {"a": 0.0}, 10) == 0
    assert measure(["a"], {}, 10) == 0


@given(RANKINGS, GRADES, st.integers(1, 10))
def test_every_measure_lies_in_0_to_1(ranked: list[str], grades: dict[str, float], k: int) -> None:
    for measure in (ndcg_at_k, recall_at_k, reciprocal_rank):
        assert 0 <= measure(ranked, grades, k) <= 1 + 1e-12


@given(GRADES.filter(lambda grades: any(grades.values())), st.integers(1, 10))
def test_the_ideal_order_has_ndcg_1(grades: dict[str, float], k: int) -> None:
    ideal = sorted(DOCUMENTS, key=lambda document: -grades.get(document, 0))
    assert ndcg_at_k(ideal, grades, k) == pytest.approx(1)


@given(RANKINGS, GRADES, st.integers(1, 7))
def test_a_longer_list_recalls_no_less(ranked: list[str], grades: dict[str, float], k: int) -> None:
    assert recall_at_k(ranked, grades, k) <= recall_at_k(ranked, grades, k + 1)


def test_a_collection_is_read_plain_or_gzipped(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t2\n2\ta\t0\n", encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text(
        '{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n{"id": "3", "text": "unjudged"}\n',
        encoding="utf-8",
    )
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as corpus:
        corpus.write('{"id": "a", "title": "T", "text": "body "}\n{"id": "b", "title": "", "text": ""}\n')

    (query,) = load_queries(tmp_path)  # the others have no relevant document
    assert (query.id, query.text, query.grades) == ("1", "one", {"a": 2.0})
    assert list(load_documents(tmp_path)) == [("a", "T\n\nbody")]


def test_a_folder_without_a_collection_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"qrels\.tsv"):
        load_queries(tmp_path)
