"""LangChain: its embeddings, a vector store over them, and its chat model."""

from typing import Any

from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from ..python.rows import MODEL, MOUSE, WHALE, Given, equal, holds
from .rows import FrameworkRow, rows_in

FRAMEWORK = "langchain-openai"
ROWS: list[FrameworkRow] = []
row = rows_in(ROWS, FRAMEWORK)

WEIGHT = '{"animal": "mouse", "grams": 6}'


class Weight(BaseModel):
    """How heavy an animal is."""

    animal: str
    grams: int


@tool
def weigh(animal: str) -> str:
    """How heavy an animal is."""
    return f"The {animal} weighs six grams."


def reached(given: Given) -> dict[str, Any]:
    return {
        "base_url": str(given.client.base_url),
        "api_key": given.client.api_key,
        "default_headers": dict(given.client._custom_headers),
        "max_retries": 0,
    }


def embeddings(given: Given, **options: Any) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(model="hash", **reached(given), **options)


def chat_model(given: Given, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, **reached(given), **options)


@row("OpenAIEmbeddings: token ids give the vectors of the texts they stand for")
def _(given: Given) -> None:
    texts = [MOUSE, "Grüße, 你好 🙂", WHALE]
    tokens = embeddings(given)
    holds(tokens.check_embedding_ctx_length, "it does not send token ids any more")
    plain = embeddings(given, check_embedding_ctx_length=False).embed_documents(texts)
    for one, other in zip(tokens.embed_documents(texts), plain, strict=True):
        holds(max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-6, "the vectors differ")
    holds(plain[0] != plain[2], "two texts, one vector")
    equal(tokens.embed_query(MOUSE), tokens.embed_documents([MOUSE])[0])


@row("InMemoryVectorStore: the text that answers comes first")
def _(given: Given) -> None:
    store = InMemoryVectorStore.from_texts([WHALE, MOUSE, "Owls hunt at night."], embeddings(given))
    (found, score), *others = store.similarity_search_with_score("the nest of the harvest mouse", k=3)
    equal(found.page_content, MOUSE)
    holds(all(score > other for _, other in others), "it is not nearer than the others")
    retrieved = store.as_retriever(search_kwargs={"k": 1}).invoke("when do owls hunt?")
    equal([document.page_content for document in retrieved], ["Owls hunt at night."])


@row("ChatOpenAI: an answer, with what it used and why it ended")
def _(given: Given) -> None:
    answer = chat_model(given).invoke([("system", "Be brief."), ("human", "six grams")])
    equal(answer.content, "six grams")
    equal(answer.usage_metadata["total_tokens"], 6)
    equal(
        (answer.response_metadata["model_name"], answer.response_metadata["finish_reason"]), (MODEL, "stop")
    )


@row("ChatOpenAI: stream(), piece by piece, folded into the answer")
def _(given: Given) -> None:
    pieces = list(chat_model(given, stream_usage=True).stream("one two three"))
    equal([piece.content for piece in pieces if piece.content], ["one", " two", " three"])
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    equal((whole.content, whole.usage_metadata["total_tokens"]), ("one two three", 6))


@row("ChatOpenAI: bind_tools(), the call, the tool and its answer")
def _(given: Given) -> None:
    model = chat_model(given).bind_tools([weigh], strict=True)
    asked = model.invoke('{"animal": "mouse"}')
    (call,) = asked.tool_calls
    equal((call["name"], call["args"]), ("weigh", {"animal": "mouse"}))
    told = weigh.invoke(call)
    after = model.invoke([("human", '{"animal": "mouse"}'), asked, told])
    equal((after.content, after.tool_calls), ("The mouse weighs six grams.", []))


@row("ChatOpenAI: with_structured_output(), by schema and by function call")
def _(given: Given) -> None:
    for method in ("json_schema", "function_calling"):
        answer = chat_model(given).with_structured_output(Weight, method=method).invoke(WEIGHT)
        equal(answer, Weight(animal="mouse", grams=6))


@row("ChatOpenAI: bind_tools() with file_search, over /responses, cites the file")
def _(given: Given) -> None:
    said = "The harvest mouse weighs six grams [1]."
    search = {"type": "file_search", "vector_store_ids": [given.animals]}
    answer = chat_model(given).bind_tools([search]).invoke(said)
    equal(answer.text, said)
    (note,) = [note for block in answer.content for note in block.get("annotations", [])]
    equal((note["type"], note["file_id"], note["filename"]), ("file_citation", given.mouse, "mouse.txt"))
