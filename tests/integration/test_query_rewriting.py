"""Questions rewritten by a language model server, as the settings ask; database and sockets are real."""

import time

import pytest
from pydantic import SecretStr
from tests.integration.test_chat_stream import Upstream
from tests.serving import served, settings_for, sherlock

ASKED = {"query": "How far can you count?", "rewrite_query": True}


@pytest.mark.parametrize(
    ("settings", "first_pause_s", "query", "told"),
    [
        ({}, 0.0, "0 1", "rewrite;dur="),
        ({"query_rewrite_timeout_s": 0.2}, 30.0, ASKED["query"], 'degraded="late"'),
        (
            {"query_rewrite_timeout_s": 0},
            0.0,
            ASKED["query"],
            'degraded="off"',
        ),
        ({"llm_provider": "local"}, 0.0, ASKED["query"], 'degraded="off"'),
    ],
    ids=["in time", "late", "switched off", "local model"],
)
def test_a_question_is_rewritten_in_time_or_stands(
    tmp_path_factory: pytest.TempPathFactory,
    empty_database_url: str,
    settings: dict[str, object],
    first_pause_s: float,
    query: str,
    told: str,
) -> None:
    upstream = Upstream(words=2, first_pause_s=first_pause_s)
    with served(upstream.opened) as url:
        chosen = {
            "rag_enabled": True,
            "postgres_url": SecretStr(empty_database_url),
            "llm_base_url": f"{url}/v1",
            "llm_model": "slow",
        }
        folder = tmp_path_factory.mktemp("rewriting")
        with (
            sherlock(settings_for(folder, **(chosen | settings)), fake_chat_model=False) as running,
            running.http() as http,
        ):
            store = http.post("/v1/vector_stores", json={}).json()["id"]
            began = time.monotonic()
            answer = http.post(f"/v1/vector_stores/{store}/search", json=ASKED)
            took_s = time.monotonic() - began
    assert answer.status_code == 200, answer.text
    assert answer.json()["search_query"] == [query]
    assert told in answer.headers["sherlock-stages"]
    assert took_s < 10
