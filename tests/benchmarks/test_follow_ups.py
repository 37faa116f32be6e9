"""Whether follow-up questions find their passage: alone, behind the turn before them, rewritten by a model.

The corpus is what Python's standard library says about itself. Run with `pytest -m benchmark -s
tests/benchmarks/test_follow_ups.py`; it takes some minutes, most of them the local model's.
"""

import importlib
import inspect
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import pytest
from tests.integration.processes import MODELS

from sherlock import local_models
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder
from sherlock.rag.adapters.local_chat_model import LocalChatModel
from sherlock.rag.application.rewrite import Rewriter, in_context
from sherlock.rag.domain.models import ChatMessage, ChatRequest
from sherlock.rag.domain.ranking import fused_score
from sherlock.rag.terms import best_score, document_weights, query_weights, terms

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(1800)]

MODULES = """
    base64 bisect calendar collections contextlib copy csv datetime decimal difflib fnmatch functools glob
    gzip hashlib heapq html inspect itertools json locale logging math os os.path pickle queue random re
    secrets select shlex shutil signal socket sqlite3 ssl statistics string struct subprocess tarfile
    tempfile textwrap threading time timeit traceback unicodedata urllib.parse urllib.request uuid
    weakref zipfile zlib
"""


@dataclass(frozen=True)
class Dialogue:
    first: str
    answer: str
    follow_up: str
    document: str
    alone: str
    """The follow-up as somebody would put it who had to ask it alone."""


DIALOGUES = [
    Dialogue("How do I copy a file together with its metadata?", "Use shutil.copy2.",
             "And a whole directory?", "shutil.copytree", "How do I copy a whole directory tree?"),
    Dialogue("How can I delete a directory tree?", "shutil.rmtree deletes it.", "What about moving it?",
             "shutil.move", "How do I move a directory tree to another place?"),
    Dialogue("How do I get the median of some numbers?", "statistics.median gives it.",
             "And the most common one?", "statistics.mode", "How do I get the most common of some numbers?"),
    Dialogue("How do I make a temporary directory?", "With tempfile.TemporaryDirectory.",
             "And where is it put by default?", "tempfile.gettempdir",
             "In which directory are temporary directories put by default?"),
    Dialogue("How do I turn an object into a JSON string?", "Call json.dumps.", "How do I get it back?",
             "json.loads", "How do I turn a JSON string back into an object?"),
    Dialogue("How do I quote a string for a URL?", "urllib.parse.quote does that.", "And undo it?",
             "urllib.parse.unquote", "How do I undo the quoting of a string in a URL?"),
    Dialogue("How do I compress bytes with gzip?", "gzip.compress.", "How do I get them back?",
             "gzip.decompress", "How do I decompress bytes that were compressed with gzip?"),
    Dialogue("How do I encode bytes as base64?", "base64.b64encode encodes them.",
             "Is there one that is safe in URLs?", "base64.urlsafe_b64encode",
             "How do I encode bytes with the URL-safe base64 alphabet?"),
    Dialogue("How do I choose one random element of a list?", "random.choice picks one.",
             "And several without repeats?", "random.sample",
             "How do I choose several random elements of a list without repeats?"),
    Dialogue("How do I put a list in random order?", "random.shuffle does so in place.",
             "How can I make that repeatable?", "random.seed",
             "How do I seed the random number generator to make random order repeatable?"),
    Dialogue("How do I find the smallest items of a large collection?", "heapq.nsmallest finds them.",
             "And the largest?", "heapq.nlargest", "How do I find the largest items of a large collection?"),
    Dialogue("How do I wrap text to lines of a certain width?", "textwrap.wrap returns the lines.",
             "Can it remove common leading whitespace too?", "textwrap.dedent",
             "How do I remove common leading whitespace from lines of text?"),
    Dialogue("How do I split a command line like a shell?", "shlex.split.", "And join it again?",
             "shlex.join", "How do I join the parts of a split command line again?"),
    Dialogue("How do I replace every match of a regular expression?", "re.sub replaces them.",
             "And just split there?", "re.split", "How do I split a string by a regular expression?"),
    Dialogue("How do I escape HTML?", "html.escape.", "How do I reverse that?", "html.unescape",
             "How do I convert escaped HTML character references back?"),
    Dialogue("How do I compute a square root?", "math.sqrt.", "What about one that is an integer?",
             "math.isqrt", "How do I compute the integer part of a square root?"),
    Dialogue("How do I cache the results of a function?", "functools.lru_cache does.",
             "Is there one without a size limit?", "functools.cache",
             "How do I cache the results of a function without a size limit?"),
    Dialogue("How do I check that a path exists?", "os.path.exists.", "And that it is a directory?",
             "os.path.isdir", "How do I check that a path is a directory?"),
    Dialogue("How do I get the last part of a path?", "os.path.basename.", "And the rest of it?",
             "os.path.dirname", "How do I get the directory part of a path?"),
    Dialogue("How do I run a command and get its output?", "subprocess.check_output returns it.",
             "How do I run it without caring about what it prints?", "subprocess.call",
             "How do I run a command with arguments and wait for its return code?"),
    Dialogue("How do I open a zip archive?", "zipfile.ZipFile opens it.", "How do I test that a file is one?",
             "zipfile.is_zipfile", "How do I test that a file is a zip archive?"),
    Dialogue("How do I make a deep copy of an object?", "copy.deepcopy.", "And a shallow one?",
             "copy.copy", "How do I make a shallow copy of an object?"),
    Dialogue("How do I get the greatest common divisor?", "math.gcd.", "And the least common multiple?",
             "math.lcm", "How do I get the least common multiple?"),
    Dialogue("How do I find where to insert into a sorted list?", "bisect.bisect_left says where.",
             "Can it insert too and keep it sorted?", "bisect.insort_left",
             "How do I insert an item into a sorted list and keep it sorted?"),
    # Turns that stand alone: what came before must not spoil them.
    Dialogue("How do I escape HTML?", "html.escape.", "How do I generate a random UUID?", "uuid.uuid4",
             "How do I generate a random UUID?"),
    Dialogue("How do I open a zip archive?", "zipfile.ZipFile opens it.",
             "Which function gives the standard deviation of a sample of data?", "statistics.stdev",
             "Which function gives the standard deviation of a sample of data?"),
    Dialogue("How do I run a command and get its output?", "subprocess.check_output returns it.",
             "How many days does a month have, and on which weekday does it begin?", "calendar.monthrange",
             "How many days does a month have, and on which weekday does it begin?"),
    Dialogue("How do I compute a square root?", "math.sqrt.", "Find all files that match a shell pattern",
             "glob.glob", "Find all files that match a shell pattern"),
    Dialogue("How do I cache the results of a function?", "functools.lru_cache does.",
             "How do I parse a query string into a dictionary?", "urllib.parse.parse_qs",
             "How do I parse a query string into a dictionary?"),
    Dialogue("How do I make a deep copy of an object?", "copy.deepcopy.",
             "Return a list of close matches for a misspelled word", "difflib.get_close_matches",
             "Return a list of close matches for a misspelled word"),
]  # fmt: skip


def library() -> dict[str, str]:
    """What each public function and class of `MODULES` says about itself, by its full name."""
    documents = {}
    for module in MODULES.split():
        for name, member in inspect.getmembers(importlib.import_module(module)):
            about = inspect.getdoc(member) if callable(member) and not name.startswith("_") else None
            if about and len(about) > 20:
                documents[f"{module}.{name}"] = f"{module}.{name}\n\n{about[:2000]}"
    return documents


class Corpus:
    """Ranks as the index does: both legs over every document, fused with the default alpha."""

    def __init__(self, embedder: SentenceTransformersEmbedder) -> None:
        self.embedder = embedder
        self.documents = library()

    async def read(self) -> None:
        texts = list(self.documents.values())
        windows = await self.embedder.embed_documents(texts)
        self.vectors = np.array([window[0] for window in windows])
        self.weights = [document_weights(terms(text)) for text in texts]
        self.df = Counter(key for weights in self.weights for key in weights)

    async def rank(self, query: str, wanted: str) -> int:
        """The place of the wanted document, counted from 1."""
        cosine = self.vectors @ np.array(await self.embedder.embed_query(query))
        asked = query_weights(terms(query), self.df, len(self.weights))
        most = best_score(asked) or 1.0
        keyword = [sum(w * held.get(key, 0) for key, w in asked.items()) / most for held in self.weights]
        scores = [fused_score(c, k, 0.7) for c, k in zip(cosine, keyword, strict=True)]
        mine = scores[list(self.documents).index(wanted)]
        return 1 + sum(score > mine for score in scores)


async def test_follow_ups() -> None:
    embedder = SentenceTransformersEmbedder(
        local_models.DEFAULT_ENCODER,
        lambda: local_models.encoder_folder(local_models.DEFAULT_ENCODER, MODELS),
    )
    local = LocalChatModel(lambda: local_models.local_llm_folder(MODELS))
    rewriter = Rewriter(local, timeout_s=60)
    corpus = Corpus(embedder)
    await corpus.read()
    print(f"\n{len(corpus.documents)} documents, {len(DIALOGUES)} dialogues")

    async def condensed(dialogue: Dialogue, messages: tuple[ChatMessage, ...]) -> str:
        return (await rewriter.condense(ChatRequest("", messages), dialogue.follow_up)).text

    async def plain(query: str) -> str:
        return query

    ways: dict[str, Callable[[Dialogue, tuple[ChatMessage, ...]], Awaitable[str]]] = {
        "alone": lambda d, _: plain(d.follow_up),
        "behind the turn before": lambda d, _: plain(f"{d.first}\n{d.follow_up}"),
        "behind it where it leans back": lambda d, m: plain(in_context(m, d.follow_up)),
        "rewritten by the local model": condensed,
        "rewritten by a person": lambda d, _: plain(d.alone),
    }
    found = {}
    try:
        for name, way in ways.items():
            began = time.perf_counter()
            ranks = []
            for dialogue in DIALOGUES:
                messages = (
                    {"role": "user", "content": dialogue.first},
                    {"role": "assistant", "content": dialogue.answer},
                    {"role": "user", "content": dialogue.follow_up},
                )
                query = await way(dialogue, messages)
                ranks.append(await corpus.rank(query, dialogue.document))
            found[name] = statistics.fmean(rank <= 5 for rank in ranks)
            print(
                f"{name}: recall@5 {found[name]:.2f}, MRR {statistics.fmean(1 / rank for rank in ranks):.3f},"
                f" {(time.perf_counter() - began) / len(ranks) * 1e3:.0f} ms each"
            )
    finally:
        await local.close()
        await embedder.close()
    assert found["behind it where it leans back"] >= found["alone"]
