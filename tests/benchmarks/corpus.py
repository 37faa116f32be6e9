"""Chunks of real text with vectors, as many as asked for, the same on every run of one installation.

Texts are pieces of the source and documentation that is installed beside Sherlock; beyond what there is, new
ones are joined from halves. Some vectors are the encoder's own, the others lie between two of those that are
near each other, with noise, so that the graph has the clusters and the slopes of real ones. A judged
collection stands among them, where `EVAL_DIR` has one; nothing is spread from its vectors, so that no made-up
chunk competes with a relevant one.
"""

import hashlib
import os
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sherlock import evaluate
from sherlock.local_models import DEFAULT_ENCODER, encoder_folder
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder

EVAL_DIR = Path(os.environ.get("EVAL_DIR", Path(__file__).parents[3] / "shared" / "eval"))
COLLECTION = "cranfield"
CACHE = Path(__file__).parents[2] / ".cache" / "benchmarks"
PIECE_CHARS = 700
"""Most pieces fit into one window of the encoder, so that all designs compared search the same vectors."""
POOL = 204_000
ENCODED, ASKED_ABOUT = 9_000, 12_000
QUESTIONS = 200
QUESTION_WORDS = (3, 8)
NEIGHBOURS = 10
NOISE = 0.3
"""Length of the noise beside a vector of length 1: cosine 0.96 to what it was spread from."""
SEED = 11

Vectors = NDArray[np.float32]
"""[rows, dimension], unit length."""


@dataclass(frozen=True)
class Judged:
    """Documents that stand among the chunks, and questions whose relevant documents are known."""

    documents: list[tuple[str, str]]
    """Id, text."""
    vectors: Vectors
    queries: list[evaluate.JudgedQuery]
    query_vectors: Vectors


@dataclass(frozen=True)
class Corpus:
    texts: list[str]
    vectors: Vectors
    questions: list[str]
    """Phrases out of the texts."""
    question_vectors: Vectors
    judged: Judged | None


def unit(rows: NDArray[np.floating]) -> Vectors:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


async def corpus(chunks: int) -> Corpus:
    dice = random.Random(SEED)
    texts = _texts(chunks, dice)
    questions = [_phrase(dice.choice(texts[:ASKED_ABOUT]), dice) for _ in range(QUESTIONS)]
    documents: list[tuple[str, str]] = []
    queries: list[evaluate.JudgedQuery] = []
    if (folder := EVAL_DIR / "collections" / COLLECTION).is_dir():
        documents = [(name, text.replace("\0", "")) for name, text in evaluate.load_documents(folder)]
        queries = evaluate.load_queries(folder)
    embedder = SentenceTransformersEmbedder(DEFAULT_ENCODER, lambda: encoder_folder(DEFAULT_ENCODER, CACHE))
    real = await _encoded(embedder, texts[:ENCODED])
    question_vectors = await _encoded(embedder, questions)
    judged = None
    if documents:
        judged = Judged(
            documents,
            await _encoded(embedder, [text for _, text in documents]),
            queries,
            await _encoded(embedder, [query.text for query in queries]),
        )
    await embedder.close()
    return Corpus(texts, _spread(real, chunks), questions, question_vectors, judged)


async def _encoded(embedder: SentenceTransformersEmbedder, texts: Sequence[str]) -> Vectors:
    """From the cache, where these texts have been encoded before."""
    key = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    file = CACHE / f"{len(texts)}-{key}.npy"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(file, np.array(await embedder.embed_texts(texts), dtype=np.float32))
    vectors: Vectors = np.load(file)
    return vectors


def _spread(real: Vectors, rows: int) -> Vectors:
    """`real` and, up to `rows`, mixtures of neighbours among them."""
    random = np.random.default_rng(SEED)
    near = np.argsort(-(real @ real.T), axis=1)[:, 1 : NEIGHBOURS + 1]
    first = random.integers(0, len(real), max(rows - len(real), 0))
    second = near[first, random.integers(0, NEIGHBOURS, len(first))]
    share = random.random((len(first), 1), dtype=np.float32)
    noise = unit(random.standard_normal((len(first), real.shape[1]), dtype=np.float32))
    mixed = unit((1 - share) * real[first] + share * real[second]) + NOISE * noise
    return np.concatenate([real, unit(mixed)])[:rows]


def installed_pieces(count: int, dice: random.Random) -> list[str]:
    """`count` of them or as many as there are, in random order."""
    pieces: list[str] = []
    for file in _installed_texts():
        pieces += _pieces(file.read_text("utf-8", errors="ignore"))
        if len(pieces) >= count:
            break
    dice.shuffle(pieces)
    return pieces[:count]


def _texts(count: int, dice: random.Random) -> list[str]:
    # As many for any count, so that those which are encoded stay the same.
    pieces = installed_pieces(POOL, dice)
    while len(pieces) < count:
        left, right = dice.choice(pieces), dice.choice(pieces)
        pieces.append(left[: PIECE_CHARS // 2] + right[-(PIECE_CHARS // 2) :])
    return pieces[:count]


def _installed_texts() -> Iterator[Path]:
    for place in ("stdlib", "purelib"):
        folder = Path(sysconfig.get_path(place))
        yield from sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".md", ".rst"))


def _pieces(text: str) -> list[str]:
    """Whole lines, up to PIECE_CHARS; what is short or no prose and no code is left out."""
    pieces, piece = [], ""
    for line in text.replace("\0", "").splitlines(keepends=True):
        if len(piece) + len(line) > PIECE_CHARS:
            pieces.append(piece)
            piece = ""
        piece += line if len(line) <= PIECE_CHARS else ""
    return [piece for piece in pieces if len(piece.split()) >= 30]


def _phrase(text: str, dice: random.Random) -> str:
    words = text.split()
    length = dice.randint(*QUESTION_WORDS)
    start = dice.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])
