"""Questions over documents with pages: the right page is found, and the answer is attributed to it.

`tests/data/questions.jsonl` holds for each question its file, page and a phrase on that page, and an answer
in other words, which a model says here without any marker: what a small model would write does not matter.
"""

import io
import json
import os
import secrets
import time
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState
from tests.fakes_index import InMemoryChunkIndex
from tests.fakes_models import FakeChatModel

from sherlock import local_models
from sherlock.graph import Chat
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder
from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.chunker import chunk
from sherlock.rag.document_text import document_text
from sherlock.rag.domain.models import (
    Candidate,
    ChatRequest,
    Chunk,
    ChunkingStrategy,
    Citation,
    Citations,
    EmbeddedChunk,
    FileSearch,
    Retrieved,
    SearchOptions,
    StoredFile,
    VectorStore,
    WorkspaceId,
)
from sherlock.rag.parsers import parse
from sherlock.rag.tokens import Cl100kCounter

DATA = Path(__file__).parents[1] / "data"
EVAL_DIR = Path(os.environ.get("EVAL_DIR", Path(__file__).parents[2].parent / "shared" / "eval"))
WORKSPACE = WorkspaceId("ws-1")
CHUNKING = ChunkingStrategy(512, 50)
COUNTER = Cl100kCounter()


@dataclass(frozen=True)
class Question:
    file: str
    page: int
    phrase: str
    question: str
    answer: str


QUESTIONS = [
    Question(**json.loads(line)) for line in (DATA / "questions.jsonl").read_text("utf-8").splitlines()
]


# ── documents ───────────────────────────────────────────────────────────────


def waterworks() -> bytes:
    """Our own manual: eight short pages, so that several stand in one chunk."""
    pdf = io.BytesIO()
    canvas = Canvas(pdf)
    for page in (DATA / "waterworks.txt").read_text("utf-8").split("\f"):
        lines = canvas.beginText(50, 780)
        words = page.split()
        for at in range(0, len(words), 14):
            lines.textLine(" ".join(words[at : at + 14]))
        canvas.drawText(lines)
        canvas.showPage()
    canvas.save()
    return pdf.getvalue()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Chunk]]:
    """The chunks of every file that is there: our own, and the shared ones where EVAL_DIR leads to them."""
    own = tmp_path_factory.mktemp("own") / "waterworks.pdf"
    own.write_bytes(waterworks())
    places = {"waterworks.pdf": own}
    for name in {question.file for question in QUESTIONS} - {own.name}:
        places[name] = next((p for p in (DATA / name, EVAL_DIR / "documents" / name) if p.exists()), own)
    return {
        name: [*chunk(parse(path, name), CHUNKING, COUNTER)]
        for name, path in sorted(places.items())
        if path is not own or name == own.name
    }


@pytest.fixture(scope="module")
def asked(documents: dict[str, list[Chunk]]) -> list[Question]:
    return [question for question in QUESTIONS if question.file in documents]


def folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())


def pages_of(part: Chunk | Candidate) -> set[int | None]:
    return {part.page, *(page for _, page in part.page_breaks)}


def texts_by_page(chunks: list[Chunk]) -> dict[int | None, str]:
    text = document_text(chunks)
    starts = sorted(
        {(one.start, one.page) for one in chunks} | {place for one in chunks for place in one.page_breaks}
    )
    ends = [*(start for start, _ in starts[1:]), len(text)]
    pages: dict[int | None, str] = {}
    for (start, page), end in zip(starts, ends, strict=True):
        pages[page] = pages.get(page, "") + text[start:end]
    return pages


def test_every_phrase_stands_on_its_page(documents: dict[str, list[Chunk]], asked: list[Question]) -> None:
    assert len(QUESTIONS) >= 60
    assert len({question.question for question in QUESTIONS}) == len(QUESTIONS)
    pages = {name: texts_by_page(chunks) for name, chunks in documents.items()}
    missing = [one for one in asked if folded(one.phrase) not in folded(pages[one.file].get(one.page, ""))]
    assert missing == []


# ── answers ─────────────────────────────────────────────────────────────────


@dataclass
class Reader:
    """A chat over all documents in one store, with the real encoder; its model says what it is told to."""

    chat: Chat
    model: FakeChatModel
    store: str

    async def ask(self, question: str, answer: str) -> tuple[list[Candidate], tuple[Citation, ...]]:
        """What is found, and what the answer is attributed to."""
        self.model.reply = answer
        search = FileSearch((self.store,), SearchOptions(limit=5, alpha=0.7))
        request = ChatRequest(self.model.name, ({"role": "user", "content": question},), search)
        found: list[Candidate] = []
        cited: tuple[Citation, ...] = ()
        async for event in self.chat.answer(WORKSPACE, request):
            if isinstance(event, Retrieved):
                found = [result.candidate for result in event.retrieval.results]
            elif isinstance(event, Citations):
                cited = event.citations
        return found, cited


@pytest.fixture(scope="module")
async def encoder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SentenceTransformersEmbedder]:
    found = local_models.find_encoder(local_models.DEFAULT_ENCODER, tmp_path_factory.mktemp("models"))
    assert found is not None
    dimension = local_models.encoder_dimension(found.folder)
    embedder = SentenceTransformersEmbedder(found.name, lambda: found.folder, dimension=dimension)
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def reader(encoder: SentenceTransformersEmbedder, documents: dict[str, list[Chunk]]) -> Reader:
    state = MemoryState()
    catalog, queue, index = InMemoryCatalog(state), InMemoryIngestQueue(state), InMemoryChunkIndex(state)
    now = int(time.time())
    store = VectorStore("vs_1", WORKSPACE, "", None, None, encoder.encoder, now, now)
    await catalog.add_vector_store(store, [], CHUNKING)
    for name, chunks in documents.items():
        file = StoredFile(f"file-{secrets.token_hex(8)}", WORKSPACE, name, "assistants", 1, "0" * 64, now)
        await catalog.add_file(file)
        await catalog.attach_file(
            WORKSPACE, store.id, file.id, attributes=None, chunking=CHUNKING, chunking_given=False
        )
        job = await queue.claim("worker", lease_s=600)
        assert job is not None
        windows = await encoder.embed_documents([one.text_in_context for one in chunks])
        await index.stage(job.lease, [EmbeddedChunk(*pair) for pair in zip(chunks, windows, strict=True)])
        await queue.complete(job.lease, await index.publish(job.lease, len(chunks)))
    model = FakeChatModel(context_tokens=6_000)
    retriever = Retriever(catalog, index, encoder, reranker=None, candidates=50, rerank_budget_s=0)
    return Reader(Chat(model, retriever, COUNTER, system_prompt="Cite.", trim_history=False), model, store.id)


@pytest.mark.torch
@pytest.mark.timeout(300)
async def test_pages_are_found_and_named(
    reader: Reader,
    documents: dict[str, list[Chunk]],
    asked: list[Question],
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = {name: document_text(chunks) for name, chunks in documents.items()}
    counts: Counter[str] = Counter()
    missed: list[str] = []
    for one in asked:
        found, cited = await reader.ask(one.question, one.answer)
        assert all(texts[c.filename][c.quote_start :].startswith(c.quote) for c in cited), (
            "quotes are verbatim"
        )
        on_page = any(part.filename == one.file and one.page in pages_of(part) for part in found)
        named = [(citation.filename, citation.page) for citation in cited]
        counts["found"] += on_page
        counts["named"] += (one.file, one.page) in named
        counts["other"] += bool(named) and (one.file, one.page) not in named
        if not on_page or (one.file, one.page) not in named:
            missed.append(f"{one.file} {one.page} found={on_page} named={named}: {one.answer}")
    with capsys.disabled():
        where = "all documents" if len(asked) == len(QUESTIONS) else "our own documents"
        print(f"\n{len(asked)} questions over {where}: {dict(counts)}")
    assert counts["found"] >= 0.95 * len(asked), missed
    assert counts["named"] >= 0.9 * len(asked), missed
