"""`sherlock eval`: a small judged collection of our own must be found well, through a whole Sherlock.

Its queries name codes, settings and things in other words than the documents do, in three languages.
"""

import re
import shutil
from pathlib import Path

import pytest
from tests.integration.processes import REPO, deployment, rows
from tests.integration.test_cli import sherlock

pytestmark = pytest.mark.timeout(300)

JUDGED = REPO / "tests" / "data" / "judged"


def measured(told: str) -> dict[str, dict[str, float]]:
    """What each line says: way -> measure -> figure."""
    figures = {}
    for line in told.splitlines():
        way, _, report = line.removeprefix("judged, ").partition(": ")
        figures[way] = {name: float(figure) for name, figure in re.findall(r"(\w+)@\d+ ([\d.]+)", report)}
    return figures


async def left_over(folder: Path, **settings: str) -> list[tuple[object, ...]]:
    return await rows(
        deployment(folder, **settings),
        "select (select count(*) from vector_stores), (select count(*) from knowledge_files),"
        " (select count(*) from knowledge_chunks), (select count(*) from ingest_jobs)",
    )


@pytest.mark.torch
def test_the_real_encoder_finds_what_is_asked_for(folder: Path) -> None:
    ways = [option for alpha in ("0", "1", "0.7") for option in ("--alpha", alpha)]
    done = sherlock(deployment(folder), "eval", "--collection", str(JUDGED), *ways)
    assert done.returncode == 0, done.stderr
    keyword, dense, hybrid = measured(done.stdout).values()
    assert hybrid["nDCG"] >= max(0.9, keyword["nDCG"], dense["nDCG"])
    assert hybrid["MRR"] >= 0.9
    assert hybrid["recall"] == 1, "all 30 documents are asked for"
    assert done.stdout.count(" 30 queries ") == 3


async def test_nothing_is_left_of_a_measurement(folder: Path, tmp_path: Path) -> None:
    fast = {"encoder_model": "hash", "reranker_model": "none"}
    done = sherlock(
        deployment(folder, **fast), "eval", "--collection", str(JUDGED), "--alpha", "0", "--queries", "3",
        "--rerank",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = measured(done.stdout)
    assert set(figures) == {"alpha 0", "alpha 0, reranked"}
    assert figures["alpha 0"]["nDCG"] > 0.6, "two of the three name a code"
    assert done.stdout.count(" 3 queries ") == 2
    assert await left_over(folder, **fast) == [(0, 0, 0, 0)]

    # A document that cannot be ingested would falsify the figures.
    spoilt = shutil.copytree(JUDGED, tmp_path / "spoilt")
    with (spoilt / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"id": "nul", "text": "a\\u0000b"}\n')
    refused = sherlock(deployment(folder, **fast), "eval", "--collection", str(spoilt))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "'nul'" in refused.stderr
    assert await left_over(folder, **fast) == [(0, 0, 0, 0)]


def test_a_folder_that_is_no_collection_is_refused(folder: Path) -> None:
    refused = sherlock(deployment(folder, encoder_model="hash"), "eval", "--collection", str(folder))
    assert refused.returncode == 1
    assert "corpus.jsonl, queries.jsonl and qrels.tsv" in refused.stderr
