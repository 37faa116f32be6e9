"""What every `Embedder` does: hashed words, and sentence-transformers with the packaged encoder."""

import asyncio
import math
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock import local_models
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder, batches, window_spans
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application.measured_embedder import MeasuredEmbedder
from sherlock.rag.domain.errors import EmbedderUnavailable
from sherlock.rag.domain.models import Vector
from sherlock.rag.domain.ports import Embedder

CAT = "A cat sleeps on the warm windowsill."
KITTEN = "The cat on the windowsill is asleep and warm."
TAX = "Companies file their annual tax return in March."


@pytest.fixture(scope="module")
async def torch(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SentenceTransformersEmbedder]:
    models = tmp_path_factory.mktemp("models")
    found = local_models.find_encoder(local_models.DEFAULT_ENCODER, models)
    assert found is not None
    embedder = SentenceTransformersEmbedder(
        found.name, lambda: found.folder, dimension=local_models.encoder_dimension(found.folder)
    )
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def hashing() -> AsyncIterator[HashEmbedder]:
    embedder = HashEmbedder()
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def measured(hashing: HashEmbedder) -> MeasuredEmbedder:
    return MeasuredEmbedder(hashing)


@pytest.fixture(params=["hashing", "measured", pytest.param("torch", marks=pytest.mark.torch)])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    embedder: Embedder = request.getfixturevalue(request.param)
    return embedder


def cosine(left: Vector, right: Vector) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def assert_unit(vector: Vector, embedder: Embedder) -> None:
    assert isinstance(vector, array)
    assert vector.typecode == "f"
    assert len(vector) == embedder.encoder.dimension
    assert math.sqrt(cosine(vector, vector)) == pytest.approx(1, abs=1e-5)


# ── every embedder ──────────────────────────────────────────────────────────


async def test_vectors_are_float32_of_unit_length(embedder: Embedder) -> None:
    texts = [CAT, "", " \n", "x", "\x00", "\ud800 lone", "漢字 🙂", "word " * 3000]
    for windows in await embedder.embed_documents(texts):
        assert windows
        for vector in windows:
            assert_unit(vector, embedder)
    for vector in await embedder.embed_texts(texts):
        assert_unit(vector, embedder)
    for text in texts:
        assert_unit(await embedder.embed_query(text), embedder)


async def test_order_is_kept_and_neighbours_do_not_matter(embedder: Embedder) -> None:
    texts = [CAT, TAX * 30, KITTEN, TAX]
    together = await embedder.embed_texts(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await embedder.embed_texts([text])
        assert cosine(alone, vector) == pytest.approx(1, abs=1e-4)
    assert await embedder.embed_texts([]) == []
    assert await embedder.embed_documents([]) == []


async def test_similar_texts_are_near(embedder: Embedder) -> None:
    cat, kitten, tax = await embedder.embed_texts([CAT, KITTEN, TAX])
    assert cosine(cat, kitten) > cosine(cat, tax) + 0.2


async def test_no_part_of_a_long_text_goes_unread(embedder: Embedder) -> None:
    query = await embedder.embed_query(CAT)
    filler = (TAX + " ") * 90
    ((*plain,),) = await embedder.embed_documents([filler])
    for position in (0, len(filler) // 2, len(filler)):
        position = filler.rfind(" ", 0, position) + 1
        text = f"{filler[:position]}{(CAT + ' ') * 8}{filler[position:]}"
        (windows,) = await embedder.embed_documents([text])
        assert len(windows) > 2
        best = max(cosine(query, window) for window in windows)
        assert best > max(cosine(query, window) for window in plain) + 0.1


async def test_one_vector_is_the_mean_of_the_windows(embedder: Embedder) -> None:
    text = f"{CAT} {TAX} " * 60
    (windows,) = await embedder.embed_documents([text])
    total = [sum(values) for values in zip(*windows, strict=True)]
    length = math.sqrt(sum(value * value for value in total))
    mean = array("f", (value / length for value in total))
    (vector,) = await embedder.embed_texts([text])
    assert len(windows) > 1
    assert cosine(vector, mean) == pytest.approx(1, abs=1e-4)
    assert cosine(await embedder.embed_query(text), mean) == pytest.approx(1, abs=1e-4)


async def test_asking_again_gives_the_same(embedder: Embedder) -> None:
    first = await embedder.embed_query(CAT)
    kept = first[:]
    first[0] = 9.0  # the caller's own copy
    assert await embedder.embed_query(CAT) == kept


async def test_status(embedder: Embedder) -> None:
    await embedder.embed_query(CAT)
    status = await embedder.status()
    assert (status.state, status.model) == ("ready", embedder.encoder.name)


# ── sentence-transformers ───────────────────────────────────────────────────


@pytest.mark.torch
async def test_vectors_are_the_librarys_own(torch: SentenceTransformersEmbedder) -> None:
    from sentence_transformers import SentenceTransformer

    found = local_models.find_encoder(local_models.DEFAULT_ENCODER, Path())
    assert found is not None
    library = SentenceTransformer(str(found.folder), device="cpu")
    for text, vector in zip([CAT, TAX], await torch.embed_texts([CAT, TAX]), strict=True):
        theirs = array("f", library.encode(text, normalize_embeddings=True))
        assert cosine(vector, theirs) == pytest.approx(1, abs=1e-5)


@pytest.mark.torch
async def test_queries_move_to_the_exported_encoder_and_stay_the_same(
    torch: SentenceTransformersEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = ["cat", "how do I reset the password of my account?", "E-4711 东京", f"{TAX} " * 60, ""]
    expected = await torch.embed_texts(questions)
    monkeypatch.setattr(torch, "_exports", [tmp_path])
    monkeypatch.setattr(torch, "_export_begun", False)
    # While it is at work; the query is what the export waits for.
    documents = asyncio.create_task(torch.embed_documents([f"{number} {TAX}" for number in range(12)]))
    await torch.embed_query("the first question")
    await asyncio.wrap_future(torch._exporting.submit(lambda: None))
    assert [Path(name).suffix for name in os.listdir(tmp_path)] == [".onnx"]
    encoded = await torch.embed_documents([f"{number} {TAX}" for number in range(12)])
    for (ours,), (theirs,) in zip(await documents, encoded, strict=True):
        assert cosine(ours, theirs) == pytest.approx(1, abs=1e-6)
    assert torch._exported is not None
    torch._recent.clear()
    for question, vector in zip(questions, expected, strict=True):
        assert cosine(await torch.embed_query(question), vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.torch
async def test_an_encoder_that_cannot_be_exported_stays_on_torch(
    torch: SentenceTransformersEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_exports", [tmp_path])
    monkeypatch.setattr(torch, "_export_begun", False)
    monkeypatch.setattr(torch, "_exported", None)
    monkeypatch.setattr("sherlock.rag.exported_encoder.MAX_MODEL_BYTES", 5)
    await torch.embed_query("another first question")
    await asyncio.wrap_future(torch._exporting.submit(lambda: None))
    assert os.listdir(tmp_path) == []
    assert_unit(await torch.embed_query("and the next one"), torch)


@pytest.mark.torch
async def test_a_query_is_not_queued_behind_documents(torch: SentenceTransformersEmbedder) -> None:
    await torch.embed_query("load first")
    documents = asyncio.create_task(torch.embed_documents([f"{number} {TAX}" * 40 for number in range(60)]))
    await asyncio.sleep(0.1)
    await torch.embed_query("a question that was never asked before")
    assert not documents.done()
    documents.cancel()
    await asyncio.gather(documents, return_exceptions=True)


@pytest.mark.torch
async def test_a_caller_who_goes_away_frees_the_thread(torch: SentenceTransformersEmbedder) -> None:
    await torch.embed_query(CAT)
    documents = asyncio.create_task(torch.embed_documents([f"{number} {TAX}" * 60 for number in range(500)]))
    await asyncio.sleep(0.2)
    documents.cancel()
    await asyncio.wait_for(torch.embed_documents([CAT]), 60)


async def test_a_missing_model_says_so() -> None:
    def locate() -> Path:
        raise local_models.ModelMissing("The model 'x' is not on this machine.")

    embedder = SentenceTransformersEmbedder("x", locate)
    assert (await embedder.status()).state == "idle"
    with pytest.raises(EmbedderUnavailable):
        _ = embedder.encoder
    with pytest.raises(EmbedderUnavailable, match="is not on this machine"):
        await embedder.embed_query(CAT)
    status = await embedder.status()
    assert (status.state, status.reason) == ("unavailable", "The model 'x' is not on this machine.")
    await embedder.close()
    with pytest.raises(EmbedderUnavailable, match="stopped"):
        await embedder.embed_query(CAT)


@given(tokens=st.integers(0, 5000), size=st.integers(8, 300), data=st.data())
def test_windows_cover_every_token_in_equal_parts(tokens: int, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size // 2))
    spans = window_spans(tokens, size, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == tokens
    assert {end - start for start, end in spans} == {spans[0][1]}
    assert spans[0][1] <= size
    for (_, end), (start, _) in pairwise(spans):
        assert end - start >= overlap


@given(lengths=st.lists(st.integers(1, 256), max_size=60), budget=st.integers(1, 1024))
def test_batches_hold_everything_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = list(batches(lengths, budget))
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[position] for position in group) <= budget


# ── hashed words ────────────────────────────────────────────────────────────


def test_hashes_are_the_same_in_every_process() -> None:
    program = (
        "import asyncio; from sherlock.rag.adapters.hash_embedder import HashEmbedder;"
        f"print(asyncio.run(HashEmbedder().embed_query({CAT!r})).tobytes().hex())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == asyncio.run(HashEmbedder().embed_query(CAT)).tobytes().hex()


async def test_a_hashed_query_waits_neither_on_the_loop_nor_behind_documents() -> None:
    class Watched(HashEmbedder):
        def _windows(self, text: str) -> list[Vector]:
            threads.append(threading.get_ident())
            return super()._windows(text)

    threads: list[int] = []
    embedder = Watched()
    let_go = threading.Event()
    embedder._documents.submit(let_go.wait)
    try:
        assert_unit(await asyncio.wait_for(embedder.embed_query(CAT), 10), embedder)
    finally:
        let_go.set()
        await embedder.close()
    assert threading.get_ident() not in threads


async def test_word_order_tells(hashing: HashEmbedder) -> None:
    first, second = await hashing.embed_texts(["dog bites man", "man bites dog"])
    assert 0.5 < cosine(first, second) < 0.999
