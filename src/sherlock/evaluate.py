"""How good search is: measures over judged queries, and a run of them through the `Retriever`.

A collection is a folder in the form BEIR made common: `corpus.jsonl` (`id`, `title`, `text`), `queries.jsonl`
(`id`, `text`) and `qrels.tsv` (query, document, grade), each possibly gzipped. Grade 0 is not relevant.
"""

import gzip
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.domain.models import Result, SearchQuery, WorkspaceId

Grades = Mapping[str, float]
"""Document -> how relevant it is to one query; one that is missing is not."""


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    id: str
    text: str
    grades: Grades


@dataclass(frozen=True, slots=True)
class Report:
    """Means over the queries that have a relevant document, and the time a search takes."""

    queries: int
    k: int
    """Where nDCG and the reciprocal rank stop."""
    depth: int
    """Where recall stops: all the results that were asked for."""
    ndcg: float
    recall: float
    reciprocal_rank: float
    median_ms: float
    p95_ms: float
    stages_ms: Mapping[str, float]
    """Median of each timed stage, in the order in which they ran."""
    degraded: int
    """Searches that had to do without a stage they wanted."""

    def __str__(self) -> str:
        return (
            f"nDCG@{self.k} {self.ndcg:.4f}  recall@{self.depth} {self.recall:.4f}  "
            f"MRR@{self.k} {self.reciprocal_rank:.4f}  {self.queries} queries  "
            f"p50 {self.median_ms:.0f} ms  p95 {self.p95_ms:.0f} ms "
            f"({', '.join(f'{stage} {ms:.0f}' for stage, ms in self.stages_ms.items())})  "
            f"{self.degraded} degraded"
        )


def ndcg_at_k(ranked: Sequence[str], grades: Grades, k: int) -> float:
    """Normalised discounted cumulative gain, 0..1, with the grade as gain and log2(1 + rank) as discount.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques" (2002), in the form of
    trec_eval's `ndcg_cut`, which BEIR reports. 0 when nothing is relevant.
    """
    ideal = _discounted(sorted(grades.values(), reverse=True)[:k])
    return _discounted([grades.get(document, 0) for document in ranked[:k]]) / ideal if ideal else 0.0


def recall_at_k(ranked: Sequence[str], grades: Grades, k: int) -> float:
    """The share of the relevant documents that stand among the first `k`; 0 when nothing is relevant."""
    relevant = {document for document, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranked[:k])) / len(relevant) if relevant else 0.0


def reciprocal_rank(ranked: Sequence[str], grades: Grades, k: int) -> float:
    """1 / rank of the first relevant document, 0 when none is among the first `k`; its mean is MRR.

    Voorhees, "The TREC-8 Question Answering Track Report" (1999).
    """
    ranks = (rank for rank, document in enumerate(ranked[:k], 1) if grades.get(document, 0) > 0)
    return 1 / next(ranks, math.inf)


def load_queries(folder: Path) -> list[JudgedQuery]:
    """The collection's queries that have a relevant document, in file order. Raises `FileNotFoundError`."""
    judged: dict[str, dict[str, float]] = {}
    with _open(folder / "qrels.tsv") as lines:
        for line in lines:
            query_id, document, grade = line.split("\t")
            if query_id != "query-id":
                judged.setdefault(query_id, {})[document] = float(grade)
    with _open(folder / "queries.jsonl") as lines:
        asked = [json.loads(line) for line in lines]
    queries = [JudgedQuery(one["id"], one["text"], judged.get(one["id"], {})) for one in asked]
    return [query for query in queries if any(grade > 0 for grade in query.grades.values())]


def load_documents(folder: Path) -> Iterable[tuple[str, str]]:
    """Id and text (title, blank line, text) of each document of `corpus.jsonl` that has any."""
    with _open(folder / "corpus.jsonl") as lines:
        for line in lines:
            document = json.loads(line)
            parts = (document.get("title", "").strip(), document["text"].strip())
            text = "\n\n".join(part for part in parts if part)
            if text:
                yield document["id"], text


async def run(
    retriever: Retriever,
    workspace_id: WorkspaceId,
    queries: Sequence[JudgedQuery],
    template: SearchQuery,
    *,
    k: int = 10,
    document_of: Callable[[Result], str],
) -> Report:
    """Ask each query as `template` with its text, one after the other, and judge the answers.

    `document_of` names the document that a result is a chunk of. A document counts where its best chunk
    stands, so `template.options.limit` should leave room for several chunks of one. nDCG and MRR look at the
    first `k` documents, recall at all that the results name.
    """
    depth = template.options.limit
    ndcg, recall, reciprocal, took_ms, degraded = [], [], [], [], 0
    stages_ms: dict[str, list[float]] = {}
    for query in queries:
        started = time.perf_counter()
        found = await retriever.search(workspace_id, replace(template, texts=(query.text,)))
        took_ms.append((time.perf_counter() - started) * 1000)
        degraded += bool(found.degraded)
        for stage, ms in found.timings_ms.items():
            stages_ms.setdefault(stage, []).append(ms)
        ranked = list(dict.fromkeys(document_of(result) for result in found.results))
        ndcg.append(ndcg_at_k(ranked, query.grades, k))
        recall.append(recall_at_k(ranked, query.grades, depth))
        reciprocal.append(reciprocal_rank(ranked, query.grades, k))
    return Report(
        queries=len(queries),
        k=k,
        depth=depth,
        ndcg=statistics.fmean(ndcg),
        recall=statistics.fmean(recall),
        reciprocal_rank=statistics.fmean(reciprocal),
        median_ms=statistics.median(took_ms),
        p95_ms=sorted(took_ms)[math.ceil(0.95 * len(took_ms)) - 1],
        stages_ms={stage: statistics.median(each) for stage, each in stages_ms.items()},
        degraded=degraded,
    )


def _discounted(gains: Sequence[float]) -> float:
    return sum(max(gain, 0) / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _open(path: Path) -> TextIO:
    if path.exists():
        return path.open(encoding="utf-8")
    zipped = path.with_name(path.name + ".gz")
    return gzip.open(zipped, "rt", encoding="utf-8")
