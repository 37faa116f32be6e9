"""`/v1/embeddings`: the encoder of this server, asked directly."""

import asyncio
import base64
import math
import sys
from array import array
from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic_core import to_json

from sherlock.deps import RagDep, ServicesDep
from sherlock.embedding_schemas import EmbeddingList, EmbeddingsRequest, embedding_list, embedding_object
from sherlock.http_errors import documented
from sherlock.json_body import JsonRoute
from sherlock.rag.application.embed import check_model, read_input
from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import Vector

router = APIRouter(prefix="/v1", tags=["embeddings"], route_class=JsonRoute)


@router.post(
    "/embeddings",
    operation_id="createEmbedding",
    response_model=EmbeddingList,
    responses=documented(400, 404, 413, 500, 503),
)
async def create_embeddings(body: EmbeddingsRequest, services: ServicesDep, rag: RagDep) -> Response:
    """Vectors of unit length, in the order of the inputs. Token ids are read as cl100k_base."""
    encoder = rag.embedder.encoder
    check_model(body.model, encoder)
    if body.dimensions is not None and body.dimensions > encoder.dimension:
        raise InvalidRequest(
            f"Invalid 'dimensions': this model gives {encoder.dimension} dimensions at most.",
            param="dimensions",
            code="integer_above_max_value",
        )
    # Both ends take a while for megabytes of text and a million floats, so neither runs on the event loop.
    texts, tokens = await asyncio.to_thread(read_input, body.input, services.counter)
    vectors = await rag.embedder.embed_texts(texts)
    content = await asyncio.to_thread(written, vectors, body, encoder.name, tokens)
    return Response(content, media_type="application/json")


def written(vectors: Sequence[Vector], body: EmbeddingsRequest, model: str, tokens: int) -> bytes:
    """The answer as JSON, vector by vector: while JSON is made, no other thread runs."""
    entries = []
    for index, vector in enumerate(vectors):
        cut = shortened(vector, body.dimensions)
        shown = as_base64(cut) if body.encoding_format == "base64" else cut.tolist()
        entries.append(to_json(embedding_object(index, shown)))
    before, after = to_json(embedding_list(model, tokens)).split(b"[]", 1)
    return b"".join((before, b"[", b",".join(entries), b"]", after))


def shortened(vector: Vector, dimensions: int | None) -> Vector:
    """The first `dimensions` floats, brought to unit length again."""
    if dimensions is None or dimensions == len(vector):
        return vector
    head = vector[:dimensions]
    norm = math.sqrt(sum(x * x for x in head))
    return array("f", (x / norm for x in head)) if norm else head


def as_base64(vector: Vector) -> str:
    """Little-endian float32, which is what both official clients decode."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")
