"""Without RAG: a light process that starts at once."""

import subprocess
import sys
from pathlib import Path

import httpx
from tests.integration.processes import deployment

HEAVY = ("torch", "transformers", "sentence_transformers", "onnxruntime", "ctranslate2")


def test_nothing_heavy_is_imported() -> None:
    program = f"""
import sys
from fastapi.testclient import TestClient
from sherlock.config import Settings
from sherlock.main import create_app
with TestClient(create_app(Settings(llm_base_url="http://127.0.0.1:9/v1"))) as client:
    assert client.get("/health").status_code == 200
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


def test_nothing_of_rag_is_touched(folder: Path) -> None:
    gateway = deployment(folder, rag_enabled="false")
    with gateway.running("serve"):
        refused = httpx.post(f"{gateway.url}/v1/vector_stores", json={}, trust_env=False)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "rag_disabled"
        assert refused.headers["x-should-retry"] == "false"
        chat = httpx.post(
            f"{gateway.url}/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hello"}]},
            trust_env=False,
        )
        assert (chat.status_code, chat.json()["error"]["code"]) == (503, "llm_not_configured")
    assert not (folder / "data").exists(), "no database, no file store, no model"
