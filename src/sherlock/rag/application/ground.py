"""Grounding, as pure functions: results -> numbered passages in the prompt; the answer -> citations.

How passages stand in the prompt is decided in `grounded_messages` and nowhere else.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sherlock.rag.domain.models import ChatMessage, Citation, Passage, Result
from sherlock.rag.domain.ports import TokenCounter
from sherlock.rag.terms import terms

MESSAGE_TOKENS = 4
"""What a message costs beside its text: role and delimiters (OpenAI Cookbook, "How to count tokens")."""

SMALLEST_PIECE_TOKENS = 24
"""A passage is not cut to less than this: a stump misleads more than it tells."""

PASSAGES_SHARE = 0.25
"""However long the history, passages get this share of the context."""

SUPPORT_THRESHOLD = 0.7
"""A statement without a marker is attributed when the quote holds at least this share of its terms."""
QUOTE_SENTENCES = 3
"""Longest quote, in sentences."""

NOTHING_FOUND = "No passages were found for this question."


# ── messages ────────────────────────────────────────────────────────────────


def text_of(message: ChatMessage) -> str:
    """The text of a message, whether its content is a string, a list of parts, or absent."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def question(messages: Sequence[ChatMessage]) -> str:
    """What retrieval asks for: the text of the last user message; empty when there is none."""
    return next((text_of(m).strip() for m in reversed(messages) if m["role"] == "user"), "")


def prompt_tokens(messages: Sequence[ChatMessage], counter: TokenCounter) -> int:
    """cl100k_base tokens of the text of all messages, with what each message costs by itself."""
    return sum(MESSAGE_TOKENS + counter.count(text_of(message)) for message in messages)


def trimmed(messages: Sequence[ChatMessage], counter: TokenCounter, budget_tokens: int) -> list[ChatMessage]:
    """Without the oldest turns, so that the rest fits; system messages and the last user message always stay.

    For models whose window is small. A turn goes as a whole, so a tool's result never loses its call.
    """
    costs = [prompt_tokens([message], counter) for message in messages]
    excess = sum(costs) - budget_tokens
    last_user = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=0)
    dropped: set[int] = set()
    for turn in turns(messages[:last_user]):
        if excess <= 0:
            break
        dropped |= set(turn)
        excess -= sum(costs[at] for at in turn)
    return [message for at, message in enumerate(messages) if at not in dropped]


def turns(messages: Sequence[ChatMessage]) -> Iterator[list[int]]:
    """Positions of a user message and all that answers it, oldest first; system messages belong to none."""
    turn: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            continue
        if message["role"] == "user" and turn:
            yield turn
            turn = []
        turn.append(at)
    if turn:
        yield turn


# ── passages ────────────────────────────────────────────────────────────────


def passages(results: Sequence[Result], counter: TokenCounter, budget_tokens: int) -> tuple[Passage, ...]:
    """The best results that fit, whole and in order; the first that does not is cut, and ends them.

    A cut falls after a sentence or, failing that, a word. A passage's text is the beginning of its chunk.
    """
    taken: list[Passage] = []
    for result in results:
        passage = Passage(len(taken) + 1, result, result.candidate.text)
        cost = counter.count(shown(passage)) + 1
        if cost <= budget_tokens:
            taken.append(passage)
            budget_tokens -= cost
            continue
        room = budget_tokens - counter.count(shown(Passage(passage.number, result, ""))) - 1
        text = beginning(passage.text, counter, room) if room >= SMALLEST_PIECE_TOKENS else ""
        if text:
            taken.append(Passage(passage.number, result, text))
        break
    return tuple(taken)


def passage_budget(
    system_prompt: str, messages: Sequence[ChatMessage], counter: TokenCounter, context_tokens: int
) -> int:
    """Tokens for passages: what system prompt and conversation leave, and never less than a fixed share."""
    left = context_tokens - counter.count(system_prompt) - prompt_tokens(messages, counter)
    return max(left, int(context_tokens * PASSAGES_SHARE))


def beginning(text: str, counter: TokenCounter, budget_tokens: int) -> str:
    """The longest beginning of `text` within the budget that ends with a sentence, or else with a word."""
    for boundary in (SENTENCE_END, WORD_END):
        ends = [match.end() for match in boundary.finditer(text)]
        fits = bisect.bisect_right(ends, budget_tokens, key=lambda end: counter.count(text[:end]))
        if fits and (piece := text[: ends[fits - 1]].rstrip()):
            return piece
    return ""


def shown(passage: Passage) -> str:
    """A passage as the model reads it."""
    found = passage.result.candidate
    page = f", page {found.page}" if found.page else ""
    return f"[{passage.number}] {found.filename}{page}\n{passage.text}"


def grounded_messages(
    system_prompt: str, found: Sequence[Passage], messages: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """The conversation with the passages before it, in one system message.

    A leading system message of the caller is taken into it, after the passages: many chat templates allow no
    second one.
    """
    blocks = [system_prompt, *([shown(passage) for passage in found] or [NOTHING_FOUND])]
    rest = list(messages)
    if rest and rest[0]["role"] in ("system", "developer"):
        blocks.append(text_of(rest.pop(0)))
    return [{"role": "system", "content": "\n\n".join(block for block in blocks if block)}, *rest]


# ── sentences ───────────────────────────────────────────────────────────────

SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|$)|[。！？]+[”’」』）]*|\n\s*|$")
WORD_END = re.compile(r"(?<=\S)(?=\s)|$")
MARKER = re.compile(r"[\[【](\d{1,3}(?:\s*,\s*\d{1,3})*)[\]】]")
CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]`, without blanks around it, and the terms in it."""

    start: int
    end: int
    terms: frozenset[str]


def sentences(text: str) -> list[Span]:
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        piece = text[start : match.end()]
        if piece.strip():
            begin = start + len(piece) - len(piece.lstrip())
            end = start + len(piece.rstrip())
            found.append(Span(begin, end, frozenset(terms(text[begin:end]))))
        start = match.end()
    return found


def quotes(passage: Passage) -> list[Span]:
    """Every run of one to `QUOTE_SENTENCES` neighbouring sentences of the passage, the shorter ones first."""
    single = sentences(passage.text)
    return [
        Span(run[0].start, run[-1].end, frozenset().union(*(sentence.terms for sentence in run)))
        for length in range(1, QUOTE_SENTENCES + 1)
        for run in (single[at : at + length] for at in range(len(single) - length + 1))
    ]


# ── citations ───────────────────────────────────────────────────────────────


def citations(answer: str, found: Sequence[Passage]) -> tuple[Citation, ...]:
    """What the answer rests on, in the order of the text.

    Markers count where there are any: `[1]`, `[1, 2]`, outside of code, with the number of a passage. A small
    model writes none, or only wrong ones; then a sentence is attributed to the passage that holds its words.
    """
    if not answer.strip() or not found:
        return ()
    candidates = {passage.number: quotes(passage) for passage in found}
    by_number = {passage.number: passage for passage in found}
    marked = list(marked_citations(answer, by_number, candidates))
    return tuple(marked or attributed_citations(answer, by_number, candidates))


def marked_citations(
    answer: str, found: dict[int, Passage], candidates: dict[int, list[Span]]
) -> Iterator[Citation]:
    """One citation for each number of each marker, at the marker's place."""
    code = [match.span() for match in CODE.finditer(answer)]
    statements = sentences(answer)
    for marker in MARKER.finditer(answer):
        if any(start <= marker.start() < end for start, end in code):
            continue
        said = statement_before(marker, answer, statements)
        for number in dict.fromkeys(int(digits) for digits in NUMBER.findall(marker[1])):
            if number in found and candidates[number]:
                yield citation(*marker.span(), found[number], best_quote(said, candidates[number]))


def statement_before(marker: re.Match[str], answer: str, statements: Sequence[Span]) -> frozenset[str]:
    """The terms of what a marker stands behind, also where a full stop stands between: `It is blue. [1]`."""
    at = bisect.bisect_right(statements, marker.start(), key=lambda statement: statement.start) - 1
    while at >= 0:
        words = MARKER.sub(" ", answer[statements[at].start : marker.start()])
        if said := frozenset(terms(words)):
            return said
        at -= 1
    return frozenset()


def attributed_citations(
    answer: str, found: dict[int, Passage], candidates: dict[int, list[Span]]
) -> Iterator[Citation]:
    """One citation for each sentence that a quote supports, at the sentence's place."""
    for statement in sentences(answer):
        said = frozenset(terms(MARKER.sub(" ", answer[statement.start : statement.end])))
        best: tuple[float, int, Span] | None = None
        for number, spans in candidates.items():
            if not spans:
                continue
            quote = best_quote(said, spans)
            share = support(said, quote.terms)
            if share >= SUPPORT_THRESHOLD and (best is None or share > best[0]):
                best = share, number, quote
        if best is not None:
            yield citation(statement.start, statement.end, found[best[1]], best[2])


def best_quote(statement: frozenset[str], spans: Sequence[Span]) -> Span:
    """The shortest of the spans that hold most of the statement's terms; the first one of equals."""
    return max(spans, key=lambda span: (len(statement & span.terms), -(span.end - span.start)))


def support(statement: frozenset[str], quote: frozenset[str]) -> float:
    """The share of the statement's terms that the quote holds, 0..1; 0 where the quote lacks a number of it.

    A single common term proves nothing, unless it is all that was said.
    """
    shared = statement & quote
    if not shared or any(NUMBER.search(term) for term in statement - quote):
        return 0.0
    return len(shared) / len(statement) if len(shared) > 1 or len(statement) == 1 else 0.0


def citation(start: int, end: int, passage: Passage, quote: Span) -> Citation:
    found = passage.result.candidate
    return Citation(
        start=start,
        end=end,
        file_id=found.file_id,
        filename=found.filename,
        vector_store_id=found.vector_store_id,
        chunk_index=found.chunk_index,
        quote=passage.text[quote.start : quote.end],
        quote_start=found.start + quote.start,
        page=found.page,
        score=passage.result.score,
    )
