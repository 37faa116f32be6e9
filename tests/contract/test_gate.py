"""With retrieval off, everything that needs it answers one and the same error, and the gateway works."""

import httpx
import pytest
from tests.serving import Served, settings_for, sherlock

MESSAGE = "RAG is not enabled — set SHERLOCK_RAG_ENABLED=true"
BODY = {
    "error": {"message": MESSAGE, "type": "server_error", "param": None, "code": "rag_disabled"},
    "detail": MESSAGE,
}
MESSAGES = [{"role": "user", "content": "hello"}]
CLOSED = [
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file-1"),
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/files/file-1/content"),
    ("POST", "/v1/uploads"),
    ("POST", "/v1/uploads/upload_1/parts"),
    ("POST", "/v1/uploads/upload_1/complete"),
    ("POST", "/v1/uploads/upload_1/cancel"),
    ("GET", "/v1/vector_stores"),
    ("POST", "/v1/vector_stores"),
    ("POST", "/v1/vector_stores/vs_1/search"),
    ("POST", "/v1/vector_stores/vs_1/file_batches"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/conv_1/items"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_closed(rag_off: Served, method: str, path: str) -> None:
    with rag_off.http() as http:
        answer = http.request(method, path)
    assert (answer.status_code, answer.json(), answer.headers["x-should-retry"]) == (503, BODY, "false")
    assert answer.headers["x-request-id"]


def test_file_search_in_a_chat_is_closed_too(rag_off: Served) -> None:
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
    sent = {"model": "fake-model", "messages": MESSAGES, "tools": tools}
    with rag_off.http() as http:
        for body in (sent, sent | {"stream": True}, sent | {"tool_choice": "none"}):
            answer = http.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()) == (503, BODY)


@pytest.mark.parametrize("path", ["/v1/filesystem", "/v1/embeddings-of-mine", "/v1/nothing"])
def test_other_paths_are_simply_unknown(rag_off: Served, path: str) -> None:
    with rag_off.http() as http:
        assert http.get(path).status_code == 404


def test_the_gateway_works(rag_off: Served) -> None:
    rag_off.chat_model.reply = "good day"
    client = rag_off.client()
    answer = client.chat.completions.create(model="fake-model", messages=MESSAGES)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "good day"
    assert [model.id for model in client.models.list()] == ["fake-model"]
    assert client.models.retrieve("fake-model").id == "fake-model"


def test_without_a_language_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = settings_for(tmp_path_factory.mktemp("nothing"))
    with sherlock(settings, fake_chat_model=False) as bare, bare.http() as http:
        for answer in (
            http.get("/v1/models"),
            http.post("/v1/chat/completions", json={"model": "any", "messages": MESSAGES}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "llm_not_configured")
            assert answer.headers["x-should-retry"] == "false"
        assert http.get("/health").json()["status"] == "ok"
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()) == (200, http.get("/health/deep").json())
        assert {part["state"] for part in ready.json()["components"].values()} == {"off"}


def test_readiness_with_retrieval(rag_on: Served) -> None:
    with rag_on.http() as http:
        answer = http.get("/health/ready")
    components = answer.json()["components"]
    assert set(components) == {"postgres", "file_store", "embedder", "reranker", "llm", "nats"}
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert components["embedder"]["model"] == "hash"


@pytest.mark.parametrize("prefix", ["", "/api/reasoner"])
def test_behind_a_proxy_with_a_prefix(tmp_path_factory: pytest.TempPathFactory, prefix: str) -> None:
    """Whether the proxy strips the prefix or leaves it on."""
    settings = settings_for(tmp_path_factory.mktemp("proxied"), root_path="/api/reasoner")
    with sherlock(settings) as proxied, httpx.Client(base_url=proxied.url, trust_env=False) as http:
        assert http.get(f"{prefix}/v1/models").status_code == 200
        assert http.get(f"{prefix}/v1/files").json() == BODY
