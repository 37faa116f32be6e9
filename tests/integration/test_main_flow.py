"""The main job on real parts: official client, `sherlock up`, real encoder, reranker and language model."""

import base64
import struct
from pathlib import Path

import httpx
import openai
import pytest
from tests.integration.processes import Deployment, deployment

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

TURBINE = (
    "Maintenance notes for the Marlowe turbine.\n\n"
    "The emergency shut-off code of the Marlowe turbine is KX-4471-Q. Keep it in the control room.\n\n"
    "The turbine is inspected every eleven weeks by two engineers.\n"
)
GARDEN = "The public garden of Hallorand opens at nine and closes at dusk. Dogs are welcome on a lead.\n"
QUESTION = "What is the emergency shut-off code of the Marlowe turbine?"


@pytest.fixture(scope="module")
def client(sherlock: Deployment) -> openai.OpenAI:
    return sherlock.client()


@pytest.fixture(scope="module")
def store_id(client: openai.OpenAI) -> str:
    """A store with two completed files, one uploaded and attached, one through `upload_and_poll`."""
    stored = client.files.create(file=("turbine.txt", TURBINE.encode()), purpose="assistants")
    store = client.vector_stores.create(name="plant", metadata={"site": "north"})
    attached = client.vector_stores.files.create_and_poll(stored.id, vector_store_id=store.id)
    assert (attached.status, attached.last_error) == ("completed", None)
    other = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("garden.md", GARDEN.encode())
    )
    assert other.status == "completed"
    return store.id


def file_search(store_id: str) -> list[dict[str, object]]:
    return [{"type": "file_search", "vector_store_ids": [store_id]}]


def test_search_finds_the_passage(client: openai.OpenAI, store_id: str) -> None:
    page = client.vector_stores.search(store_id, query=QUESTION)
    best = page.data[0]
    assert best.filename == "turbine.txt"
    assert "KX-4471-Q" in best.content[0].text
    assert 0.5 < best.score <= 1.0
    assert [hit.score for hit in page.data] == sorted((hit.score for hit in page.data), reverse=True)


def test_plain_answer_is_grounded_and_cited(client: openai.OpenAI, store_id: str) -> None:
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": QUESTION}],
        tools=file_search(store_id),  # type: ignore[arg-type]
    )
    message = answer.choices[0].message
    assert message.content is not None
    assert "KX-4471-Q" in message.content
    assert message.annotations
    citation = message.annotations[0].url_citation
    assert citation.title == "turbine.txt"
    extra = citation.model_extra or {}
    assert extra["quote"] in TURBINE
    assert "KX-4471-Q" in extra["quote"]
    assert 0 <= citation.start_index <= citation.end_index <= len(message.content)
    assert answer.usage is not None
    bare = client.chat.completions.create(
        model=answer.model, messages=[{"role": "user", "content": QUESTION}], max_tokens=1
    )
    assert bare.usage is not None
    assert answer.usage.prompt_tokens > bare.usage.prompt_tokens, "retrieved context is counted"


def test_streamed_answer_is_the_same(client: openai.OpenAI, store_id: str) -> None:
    arguments = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": file_search(store_id),
        "temperature": 0,
    }
    plain = client.chat.completions.create(**arguments)  # type: ignore[call-overload]
    text, titles, usage = "", [], None
    stream = client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    for piece in stream:
        usage = piece.usage or usage
        for choice in piece.choices:
            text += choice.delta.content or ""
            for entry in (choice.delta.model_extra or {}).get("annotations", []):
                titles.append(entry["url_citation"]["title"])
    assert text == plain.choices[0].message.content
    assert "KX-4471-Q" in text
    assert titles
    assert set(titles) == {"turbine.txt"}
    assert usage is not None
    assert usage.total_tokens == plain.usage.total_tokens


def test_the_fact_is_not_known_without_the_document(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id, messages=[{"role": "user", "content": QUESTION}], max_tokens=60
    )
    assert "KX-4471-Q" not in (answer.choices[0].message.content or "")


def test_embeddings_float_and_base64(client: openai.OpenAI) -> None:
    model = client.models.list().data[-1].id
    floats = client.embeddings.create(
        model=model, input=["a turbine", "a garden"], encoding_format="float"
    ).data
    assert [item.index for item in floats] == [0, 1]
    assert len(floats[0].embedding) == 384
    assert sum(x * x for x in floats[0].embedding) == pytest.approx(1.0, abs=1e-4)
    raw = client.embeddings.create(model=model, input="a turbine", encoding_format="base64").data[0].embedding
    decoded = struct.unpack("<384f", base64.b64decode(str(raw)))
    assert decoded == pytest.approx(floats[0].embedding, abs=1e-5)
    assert client.embeddings.create(model=model, input="a turbine").usage.prompt_tokens > 0


def test_lists_reads_and_updates(client: openai.OpenAI, store_id: str) -> None:
    names = {file.filename: file.id for file in client.files.list()}
    assert {"turbine.txt", "garden.md"} <= set(names)
    assert client.files.retrieve(names["turbine.txt"]).status == "processed"
    assert client.files.content(names["turbine.txt"]).content == TURBINE.encode()
    assert store_id in {store.id for store in client.vector_stores.list()}
    assert client.vector_stores.update(store_id, name="plant B").name == "plant B"
    kept = client.vector_stores.retrieve(store_id)
    assert (kept.metadata, kept.file_counts.completed, kept.status) == ({"site": "north"}, 2, "completed")
    assert kept.usage_bytes > 0
    members = {member.id for member in client.vector_stores.files.list(store_id)}
    assert members == {names["turbine.txt"], names["garden.md"]}
    page = client.vector_stores.files.content(names["turbine.txt"], vector_store_id=store_id)
    assert "".join(part.text or "" for part in page.data).strip() == TURBINE.strip()


def test_broken_file_fails_with_a_reason_and_disturbs_nothing(client: openai.OpenAI, store_id: str) -> None:
    broken = client.vector_stores.files.upload_and_poll(
        vector_store_id=store_id, file=("broken.pdf", b"%PDF-1.7\nnot a document")
    )
    assert broken.status == "failed"
    assert broken.last_error is not None
    assert broken.last_error.code == "invalid_file"
    assert broken.last_error.message.endswith(".")
    client.files.delete(broken.id)
    assert client.vector_stores.search(store_id, query=QUESTION).data[0].filename == "turbine.txt"


def test_readiness_names_what_runs(sherlock: Deployment) -> None:
    components = httpx.get(f"{sherlock.url}/health/ready", trust_env=False).json()["components"]
    assert set(components) == {"postgres", "file_store", "embedder", "reranker", "llm", "nats"}
    assert components["embedder"]["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert "L-12" in components["reranker"]["model"]
    assert "smollm2" in components["llm"]["model"].lower()


def test_a_second_sherlock_forwards_to_the_first(sherlock: Deployment, store_id: str, folder: Path) -> None:
    """Gateway mode over HTTP: the upstream is a real Sherlock, whose answers pass through."""
    gateway = deployment(folder, rag_enabled="false", llm_base_url=f"{sherlock.url}/v1")
    process = gateway.start("serve")
    try:
        gateway.wait_until_ready([process])
        client = gateway.client()
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
        )
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 8
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": QUESTION}],
                tools=file_search(store_id),  # type: ignore[arg-type]
            )
        assert refused.value.code == "rag_disabled"
    finally:
        assert process.stop() == 0


def test_data_is_there_after_a_restart(folder: Path) -> None:
    first = deployment(folder)
    with first.running("up"):
        client = first.client()
        store = client.vector_stores.create(name="kept")
        client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("turbine.txt", TURBINE.encode())
        )
    with first.running("up"):
        hits = first.client().vector_stores.search(store.id, query=QUESTION).data
        assert [hit.filename for hit in hits] == ["turbine.txt"]
