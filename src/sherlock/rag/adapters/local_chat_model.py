"""`ChatModel` in this process: SmolLM2-135M on CTranslate2, so that the first answer needs nothing
configured.

It answers from a few short passages and is greedy unless a temperature is asked for. What it cannot do is
refused by name: silently ignoring `tools` or `response_format` would give answers of the wrong shape.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sherlock.rag.domain.errors import (
    ChatModelUnavailable,
    InvalidRequest,
    ModelNotFound,
    SherlockError,
)
from sherlock.rag.domain.models import (
    ChatMessage,
    ChatRequest,
    ComponentStatus,
    Finished,
    ModelEvent,
    TextDelta,
    Usage,
)
from sherlock.rag.loaded_model import LoadedModel
from sherlock.rag.surrogates import without_surrogates

if TYPE_CHECKING:
    import ctranslate2
    from tokenizers import Tokenizer

NAME = "smollm2-135m-instruct"
WINDOW_TOKENS = 2048
"""The model was trained on this many (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct)."""
DEFAULT_ANSWER_TOKENS = 256
MAX_WAITING = 8
REPETITION_PENALTY = 1.05
"""Keeps greedy decoding of a small model out of loops; more of it damages numbers and codes."""
NO_REPEAT_TOKENS = 8
"""No run of this many tokens comes twice in an answer: ends the loops that the penalty does not."""

_START, _END = "<|im_start|>", "<|im_end|>"
_DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model's own chat template puts first when a conversation has no system message."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNSUPPORTED = ("tools", "functions", "logprobs", "top_logprobs", "logit_bias", "audio", "prediction")
_NEUTRAL = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0}
_STOPPED = "The local language model has been stopped."

_Event = ModelEvent | SherlockError | None
"""What the thread hands over: an event, or the error that ended the answer, or `None` at its end."""

logger = logging.getLogger(__name__)


class LocalChatModel:
    """`locate` gives the converted model's folder and may block, since it may convert it.

    `context_tokens` bounds passages and history: beyond some 900 the model no longer finds its facts.
    `timeout_s` bounds the wait for the first piece of an answer, in the queue and for the load included.
    `threads` of one answer: more than one is faster on an idle machine, and many times slower on a busy one.
    """

    def __init__(
        self,
        locate: Callable[[], Path],
        *,
        name: str = NAME,
        context_tokens: int = 800,
        threads: int = 1,
        timeout_s: float = 120.0,
    ) -> None:
        self._locate = locate
        self._name = name
        self._context_tokens = context_tokens
        self._threads = threads
        self._timeout_s = timeout_s
        self._model = LoadedModel("The local language model", self._load, ChatModelUnavailable)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-chat-model")
        self._asked = 0
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin loading (and, the first time, converting) in the background."""
        self._thread.submit(self._warm_up)

    @property
    def name(self) -> str:
        return self._name

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """One answer at a time, at most `MAX_WAITING` others wait; more are `ChatModelUnavailable`."""
        if request.model not in ("", self._name):
            raise ModelNotFound(request.model)
        turns = _turns(request.messages)
        options = _Options.of(request.options)
        if self._closing.is_set():
            raise ChatModelUnavailable(_STOPPED)
        if self._asked > MAX_WAITING:
            raise ChatModelUnavailable(
                "The local language model is busy: too many requests are waiting for it."
            )
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[_Event] = asyncio.Queue()
        stop = threading.Event()

        def emit(event: _Event) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(events.put_nowait, event)

        self._asked += 1
        answer = loop.run_in_executor(self._thread, self._answer, turns, options, emit, stop)
        try:
            # Whether the model loads and the prompt fits shows with the first event: such errors come first.
            first = await self._first(events)
            if isinstance(first, SherlockError):
                raise first
            yield _following(first, events)
        finally:
            stop.set()
            answer.cancel()  # one that still waits leaves the queue; a running one stops at its next token
            self._asked -= 1

    async def _first(self, events: "asyncio.Queue[_Event]") -> "_Event":
        try:
            async with asyncio.timeout(self._timeout_s):
                return await events.get()
        except TimeoutError:
            raise ChatModelUnavailable(
                f"The local language model did not begin to answer within {self._timeout_s:g} s."
            ) from None

    async def models(self) -> list[str]:
        return [self._name]

    async def status(self) -> ComponentStatus:
        return self._model.status(self._name)

    async def close(self) -> None:
        """Stop a running answer and release the model."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.submit(self._model.close)
        self._thread.shutdown(wait=False)

    # ── in the adapter's thread ──

    def _warm_up(self) -> None:
        try:
            self._model.get()
        except ChatModelUnavailable:
            return  # stands in the status, and the next call says so

    def _load(self) -> "_Generator":
        folder = self._locate()
        import ctranslate2
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.encode_special_tokens = True  # "<|im_end|>" in a message is text, not the end of a turn
        # float32: int8 on top of the 4-bit weights answers wrongly.
        generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=self._threads
        )
        return _Generator(generator, tokenizer)

    def _answer(
        self,
        turns: "list[_Turn]",
        options: "_Options",
        emit: Callable[[_Event], None],
        stop: threading.Event,
    ) -> None:
        try:
            model = self._model.get()
            model.answer(turns, options, emit, lambda: stop.is_set() or self._closing.is_set())
            emit(ChatModelUnavailable(_STOPPED) if self._closing.is_set() else None)
        except SherlockError as error:
            emit(error)
        except Exception as error:  # whatever the runtime raises; its words may quote the prompt
            logger.warning("local language model failed", extra={"error": type(error).__name__})
            emit(ChatModelUnavailable("The local language model failed."))


async def _following(first: ModelEvent | None, events: "asyncio.Queue[_Event]") -> AsyncIterator[ModelEvent]:
    event: _Event = first
    while event is not None:
        if isinstance(event, SherlockError):
            raise event
        yield event
        event = await events.get()


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    text: str


def _turns(messages: Sequence[ChatMessage]) -> list[_Turn]:
    """The conversation as the model's template wants it. Raises `InvalidRequest` for what is not text."""
    turns = []
    for number, message in enumerate(messages):
        param = f"messages[{number}]"
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES or message.get("tool_calls"):
            raise InvalidRequest("The local language model cannot use tools.", param=param)
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if any(part.get("type") not in ("text", "refusal") for part in parts):
            raise InvalidRequest("The local language model reads text only.", param=param)
        turns.append(
            _Turn(_ROLES[role], "".join(part.get("text") or part.get("refusal") or "" for part in parts))
        )
    if not turns or turns[0].role != "system":
        turns.insert(0, _Turn("system", _DEFAULT_SYSTEM))
    return turns


@dataclass(frozen=True, slots=True)
class _Options:
    """What of a request's options this model can honour."""

    max_tokens: int
    temperature: float
    """0 is greedy."""
    top_p: float
    stop: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "_Options":
        """`None` means not given, as in OpenAI's API. Raises `InvalidRequest` that names the option.

        `seed` changes nothing: a greedy answer repeats anyway, and the runtime seeds its threads only once.
        """
        given = {name: value for name, value in options.items() if value is not None}
        refused = [name for name in _UNSUPPORTED if given.get(name)]
        refused += [name for name, neutral in _NEUTRAL.items() if given.get(name, neutral) != neutral]
        if given.get("response_format", {}).get("type", "text") != "text":
            refused.append("response_format")
        if any(kind != "text" for kind in given.get("modalities", ())):
            refused.append("modalities")
        if refused:
            raise InvalidRequest(
                f"The local language model does not support '{refused[0]}'.", param=refused[0]
            )
        stop = given.get("stop", ())
        return cls(
            max_tokens=given.get("max_completion_tokens", given.get("max_tokens", DEFAULT_ANSWER_TOKENS)),
            temperature=given.get("temperature", 0.0),
            top_p=given.get("top_p", 1.0),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )

    def sampling(self) -> dict[str, float]:
        if self.temperature == 0 or self.top_p == 0:
            return {"sampling_topk": 1}
        return {
            "sampling_topk": 0,  # no bound
            "sampling_topp": self.top_p,
            "sampling_temperature": self.temperature,
        }


class _StopFilter:
    """Passes text through up to the first stop sequence, holding back what may turn out to begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self.held = ""
        self.hit = False

    def add(self, piece: str) -> str:
        """The text that is safe to send now."""
        text = self.held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self.held = True, ""
            return text[: min(found)]
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                self.held = text[start:]
                return text[:start]
        self.held = ""
        return text


class _Generator:
    """The loaded model with its tokenizer."""

    def __init__(self, generator: "ctranslate2.Generator", tokenizer: "Tokenizer") -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._end_id = tokenizer.token_to_id(_END)

    def prompt(self, turns: Sequence[_Turn]) -> list[str]:
        """Tokens of the conversation in ChatML, as the model's template writes it, up to the answer's first.

        Each text is encoded by itself, so that nothing in it can pass for a control token.
        """
        tokens: list[str] = []
        for turn in turns:
            tokens += [_START, *self._tokens(f"{turn.role}\n{turn.text}"), _END, *self._tokens("\n")]
        return [*tokens, _START, *self._tokens("assistant\n")]

    def answer(
        self,
        turns: Sequence[_Turn],
        options: _Options,
        emit: Callable[[ModelEvent], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Emit the answer's events until `stopped()`. Raises `InvalidRequest` for too long a prompt."""
        from tokenizers.decoders import DecodeStream

        prompt = self.prompt(turns)
        room = WINDOW_TOKENS - len(prompt)
        if room < 1:
            raise InvalidRequest(
                f"This model's maximum context length is {WINDOW_TOKENS} tokens, and the messages have "
                f"{len(prompt)}.",
                param="messages",
                code="context_length_exceeded",
            )
        # The runtime's own thread lets go of the callback last. It must not own the model then, whose end
        # joins that thread: hence no `self` in it.
        tokenizer, end_id = self._tokenizer, self._end_id
        characters = DecodeStream(skip_special_tokens=True)  # holds bytes back until they make a character
        text = _StopFilter(options.stop)
        generated = 0
        ended = False

        def on_token(step: "ctranslate2.GenerationStepResult") -> bool:
            nonlocal generated, ended
            if stopped():
                return True
            if step.token_id == end_id:
                ended = True
                return True
            generated += 1
            if sendable := text.add(characters.step(tokenizer, step.token_id) or ""):
                emit(TextDelta(sendable))
            return text.hit

        self._generator.generate_batch(
            [prompt],
            max_length=min(options.max_tokens, room),
            end_token=[end_id],
            return_end_token=True,
            include_prompt_in_result=False,  # reads the prompt in one go
            repetition_penalty=REPETITION_PENALTY,
            no_repeat_ngram_size=NO_REPEAT_TOKENS,
            callback=on_token,
            **options.sampling(),
        )
        if stopped():
            return
        if text.held:
            emit(TextDelta(text.held))
        emit(Finished("stop" if ended or text.hit else "length"))
        emit(Usage(len(prompt), generated))

    def _tokens(self, text: str) -> list[str]:
        return self._tokenizer.encode(without_surrogates(text), add_special_tokens=False).tokens
