"""What `/v1/embeddings` answers, and where the work for it is done."""

import base64
import json
import threading
from array import array
from typing import Any

import pytest

from sherlock.embedding_schemas import EmbeddingsRequest
from sherlock.embeddings_router import create_embeddings, written
from sherlock.rag.domain.models import Encoder
from sherlock.rag.tokens import Cl100kCounter

VECTORS = [array("f", [0.6, 0.8, 0.0]), array("f", [0.0, 0.28, 0.96])]


def asked(**more: Any) -> EmbeddingsRequest:
    return EmbeddingsRequest.model_validate({"model": "m", "input": "a", **more})


def test_the_answer_is_one_json_object() -> None:
    assert json.loads(written(VECTORS, asked(), "[]", 7)) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector.tolist()}
            for index, vector in enumerate(VECTORS)
        ],
        "model": "[]",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


@pytest.mark.parametrize("dimensions", [None, 2])
def test_base64_holds_the_same_floats(dimensions: int | None) -> None:
    floats = json.loads(written(VECTORS, asked(dimensions=dimensions), "m", 1))["data"]
    packed = json.loads(written(VECTORS, asked(dimensions=dimensions, encoding_format="base64"), "m", 1))
    for vector, entry in zip(floats, packed["data"], strict=True):
        unpacked = array("f", base64.b64decode(entry["embedding"]))
        assert unpacked.tolist() == vector["embedding"]
        assert sum(x * x for x in unpacked) == pytest.approx(1)


async def test_a_million_floats_are_not_written_on_the_event_loop() -> None:
    threads: set[int] = set()

    class Watched(array):  # type: ignore[type-arg]
        def tolist(self) -> list[float]:
            threads.add(threading.get_ident())
            return super().tolist()

    class Embedder:
        encoder = Encoder("m", 3)

        async def embed_texts(self, texts: list[str]) -> list[Any]:
            return [Watched("f", VECTORS[0]) for _ in texts]

    class Parts:
        embedder = Embedder()
        counter = Cl100kCounter()

    answer = await create_embeddings(asked(), Parts(), Parts())  # type: ignore[arg-type]
    assert json.loads(bytes(answer.body))["data"][0]["embedding"] == VECTORS[0].tolist()
    assert threads
    assert threading.get_ident() not in threads
