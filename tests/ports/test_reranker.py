"""What every `Reranker` does: the fake, and cross-encoders on ONNX Runtime and on torch."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes_models import FakeReranker
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from sherlock import local_models
from sherlock.rag.adapters import reranker as reranker_module
from sherlock.rag.adapters.reranker import (
    BATCH_TOKENS,
    FEWEST,
    FIRST_GUESS_S_PER_TOKEN,
    CrossEncoderReranker,
    _sigmoid,
)
from sherlock.rag.domain.errors import RerankerUnavailable
from sherlock.rag.domain.ports import Reranker

QUERY = "how tall is the eiffel tower"
TEXTS = [
    "Bananas are rich in potassium and are eaten all over the world.",
    "The eiffel tower is 330 metres tall and stands in Paris.",
    "A tower of strength: a history of castles in Wales.",
    "The recipe needs two eggs, flour and a little butter.",
    "Paris has many museums, gardens and bridges.",
]
PLENTY_S = 60.0


@pytest.fixture(scope="module")
async def onnx(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CrossEncoderReranker]:
    models = tmp_path_factory.mktemp("models")
    found = local_models.find_reranker("", models)
    assert found is not None
    reranker = CrossEncoderReranker(found.name, lambda: local_models.reranker_folder("", models))
    yield reranker
    await reranker.close()


@pytest.fixture(params=["fake", pytest.param("onnx", marks=pytest.mark.torch)])
def reranker(request: pytest.FixtureRequest) -> Reranker:
    return FakeReranker() if request.param == "fake" else request.getfixturevalue(request.param)


async def test_the_answering_text_scores_best(reranker: Reranker) -> None:
    scores = await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    assert len(scores) == len(TEXTS)
    assert max(range(len(scores)), key=scores.__getitem__) == 1
    assert all(0 <= score <= 1 for score in scores)


async def test_scores_stand_in_the_order_of_the_texts(reranker: Reranker) -> None:
    scores = await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    turned = await reranker.rerank(QUERY, TEXTS[::-1], PLENTY_S)
    assert turned[::-1] == pytest.approx(scores, abs=0.1)  # int8 rounds by what else is in the batch
    assert await reranker.rerank(QUERY, TEXTS, PLENTY_S) == scores


async def test_too_small_a_budget_gives_nothing(reranker: Reranker) -> None:
    await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    assert await reranker.rerank(QUERY, TEXTS, 0.0) == []


async def test_fewer_texts_than_the_fewest_are_all_scored(reranker: Reranker) -> None:
    assert len(await reranker.rerank(QUERY, TEXTS[:2], PLENTY_S)) == 2
    assert await reranker.rerank(QUERY, [], PLENTY_S) == []


async def test_strange_texts_are_scored_too(reranker: Reranker) -> None:
    strange = ["", " ", "word " * 5000, "\x00\ud800 lone", "漢字🙂"]
    assert len(await reranker.rerank("word " * 3000 + "\ud800", strange, PLENTY_S)) == len(strange)


async def test_status(reranker: Reranker) -> None:
    await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    status = await reranker.status()
    assert status.state == "ready"
    assert status.model


@pytest.mark.torch
async def test_the_budget_decides_how_many(onnx: CrossEncoderReranker) -> None:
    await onnx.rerank(QUERY, TEXTS, PLENTY_S)
    texts = ["The eiffel tower stands in Paris. " * 12] * 40
    budget_s = 10 * 110 * onnx._cost_s  # pays for some ten of these
    scores = await onnx.rerank(QUERY, texts, budget_s)
    assert FEWEST <= len(scores) < 20


@pytest.mark.torch
async def test_the_packaged_model_is_named(onnx: CrossEncoderReranker) -> None:
    assert (await onnx.status()).model == local_models.PACKAGED_RERANKER


@pytest.mark.torch
async def test_weights_for_torch_are_read_as_well(tmp_path: Path) -> None:
    """A small cross-encoder with random weights: it ranks nothing well, but it must run."""
    from transformers import BertConfig, BertForSequenceClassification

    packaged = local_models.find_reranker("", tmp_path)
    assert packaged is not None
    folder = tmp_path / "tiny"
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(packaged.folder / name, folder)
    reranker = CrossEncoderReranker("tiny", lambda: local_models.reranker_folder(str(folder), tmp_path))
    scores = await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    status = await reranker.status()
    await reranker.close()
    assert len(scores) == len(TEXTS)
    assert all(0 < score < 1 for score in scores)
    assert (status.state, status.model) == ("ready", "tiny")


async def test_a_missing_model_says_so() -> None:
    def locate() -> Path:
        raise local_models.ModelMissing("The model 'x' is not on this machine.")

    reranker = CrossEncoderReranker("x", locate)
    assert (await reranker.status()).state == "idle"
    for _ in range(2):
        with pytest.raises(RerankerUnavailable, match="is not on this machine"):
            await reranker.rerank(QUERY, TEXTS, PLENTY_S)
    status = await reranker.status()
    assert (status.state, status.reason) == ("unavailable", "The model 'x' is not on this machine.")
    await reranker.close()
    with pytest.raises(RerankerUnavailable, match="stopped"):
        await reranker.rerank(QUERY, TEXTS, PLENTY_S)


@pytest.mark.torch
async def test_a_caller_who_goes_away_frees_the_thread(onnx: CrossEncoderReranker) -> None:
    await onnx.rerank(QUERY, TEXTS, PLENTY_S)
    long = asyncio.create_task(onnx.rerank(QUERY, ["The tower. " * 150] * 400, 10_000))
    await asyncio.sleep(0.2)
    long.cancel()
    assert await asyncio.wait_for(onnx.rerank(QUERY, TEXTS, PLENTY_S), 30)


# ── cost and budget, on a clock of its own ──────────────────────────────────

WORDS_EACH = 100
COST_S = FIRST_GUESS_S_PER_TOKEN


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class TimedCrossEncoder:
    """Takes `cost_s` of the clock for each padded token; `slow` batches take fifty times as long."""

    def __init__(self, clock: Clock) -> None:
        self.tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
        self.tokenizer.pre_tokenizer = Whitespace()
        self.clock = clock
        self.cost_s = COST_S
        self.slow = 0

    def logits(self, batch: Sequence[Encoding]) -> list[float]:
        self.clock.now += self.cost_s * (50 if self.slow else 1) * len(batch) * max(map(len, batch))
        self.slow = max(0, self.slow - 1)
        return [0.0] * len(batch)


@dataclass
class Bench:
    clock: Clock
    model: TimedCrossEncoder
    reranker: CrossEncoderReranker

    async def loaded(self) -> None:
        assert await self.ranked(budget_s=PLENTY_S) == 8

    async def ranked(self, budget_s: float = 0.4) -> int:
        """How many of 8 texts are scored; 0.4 s pay for 16 at the usual cost."""
        return len(await self.reranker.rerank("query", ["word " * WORDS_EACH] * 8, budget_s))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    clock = Clock()
    monkeypatch.setattr(reranker_module, "time", clock)
    model = TimedCrossEncoder(clock)

    class Timed(CrossEncoderReranker):
        def _load(self) -> TimedCrossEncoder:
            return model

    reranker = Timed("timed", Path)
    yield Bench(clock, model, reranker)
    await reranker.close()


async def test_one_slow_batch_then_all_is_as_before(bench: Bench) -> None:
    await bench.loaded()
    bench.model.slow = 1
    assert FEWEST <= await bench.ranked() < 8, "what was read before the time was over"
    assert await bench.ranked() == 8, "a moment's pause is no new cost"


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("budget_s", [0.1, 0.2, 0.4, 1.0])
async def test_reading_overruns_its_time_by_no_more_than_a_batch(
    bench: Bench, budget_s: float, slow: int
) -> None:
    await bench.loaded()
    began, bench.model.slow = bench.clock.now, slow
    assert await bench.ranked(budget_s) in {0, *range(FEWEST, 9)}
    assert bench.clock.now - began <= budget_s + 50 * COST_S * BATCH_TOKENS


class HeldCrossEncoder(TimedCrossEncoder):
    """Reads a batch, and does not come back from the next one until it is let go."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.held, self.let_go = threading.Event(), threading.Event()
        self.hold = False

    def logits(self, batch: Sequence[Encoding]) -> list[float]:
        if self.hold and self.read:
            self.held.set()
            self.let_go.wait()
        self.read = True
        return super().logits(batch)

    read = False


async def test_what_was_read_is_handed_over_in_time_out_of_a_batch_that_does_not_end() -> None:
    model = HeldCrossEncoder(Clock())

    class Held(CrossEncoderReranker):
        def _load(self) -> HeldCrossEncoder:
            return model

    reranker = Held("held", Path)
    texts = ["word " * WORDS_EACH] * 8
    assert len(await reranker.rerank("query", texts, PLENTY_S)) == 8
    model.hold, model.read = True, False
    scores = await asyncio.wait_for(reranker.rerank("query", texts, 3.0), 30)
    assert model.held.is_set()
    assert FEWEST <= len(scores) < 8
    model.let_go.set()
    assert len(await reranker.rerank("query", texts, PLENTY_S)) == 8
    await reranker.close()


async def test_a_busy_time_ranks_fewer_and_ends(bench: Bench) -> None:
    await bench.loaded()
    bench.model.slow = 1_000_000
    while await bench.ranked():
        pass
    assert bench.reranker._cost_s > 3 * COST_S
    bench.model.slow = 0
    assert [await bench.ranked() for _ in range(30)][-1] == 8


async def test_a_machine_that_is_too_slow_is_not_thought_faster_and_faster(bench: Bench) -> None:
    await bench.loaded()
    assert [await bench.ranked(budget_s=0.01) for _ in range(50)] == [0] * 50
    assert bench.reranker._cost_s == pytest.approx(COST_S)


async def test_callers_who_lost_their_time_in_the_queue_say_nothing_of_the_cost(bench: Bench) -> None:
    await bench.loaded()
    bench.reranker._cost_s = known = 1.5 * COST_S
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait()
        bench.clock.now += 0.35

    bench.reranker._thread.submit(hold)
    queued = [asyncio.ensure_future(bench.ranked()) for _ in range(5)]
    await asyncio.to_thread(begun.wait)
    go_on.set()
    assert await asyncio.gather(*queued) == [0] * 5
    assert bench.reranker._cost_s == known


@pytest.mark.parametrize(("times", "counted"), [(0.5, 0.5), (1, 1), (9, 5)])
async def test_a_warm_up_while_others_load_counts_half(bench: Bench, times: float, counted: float) -> None:
    bench.model.cost_s = times * COST_S
    bench.reranker.start()
    await asyncio.wrap_future(bench.reranker._thread.submit(lambda: None))
    assert bench.reranker._cost_s == pytest.approx(counted * COST_S)


@given(st.floats(-1000, 1000))
def test_sigmoid(logit: float) -> None:
    assert 0 <= _sigmoid(logit) <= 1
    assert _sigmoid(logit) + _sigmoid(-logit) == pytest.approx(1)
