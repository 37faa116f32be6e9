"""Settings: strict, with units, and silent about values."""

import pytest

from sherlock.config import ConfigurationError, Settings, load


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("SHERLOCK_", "OTEL_")) or name == "RAG_ENABLED":
            monkeypatch.delenv(name)


def test_defaults_are_the_contract() -> None:
    settings = load()
    assert (settings.host, settings.port, settings.rag_enabled) == ("127.0.0.1", 8802, False)
    assert (settings.max_file_bytes, settings.hybrid_alpha) == (52_428_800, 0.7)
    assert (settings.chunk_size_tokens, settings.chunk_overlap_tokens) == (512, 50)
    assert (settings.retrieval_candidate_k, settings.retrieval_top_k) == (50, 5)
    assert settings.chat_provider is None


def test_older_names_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_ENABLED", "true")
    monkeypatch.setenv("SHERLOCK_EMBEDDING_MODEL", "hash")
    settings = load()
    assert (settings.rag_enabled, settings.encoder_model) == (True, "hash")
    assert settings.chat_provider == "local"


def test_every_fault_is_named_and_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHERLOCK_HYBRID_ALFA", "0.5")
    monkeypatch.setenv("SHERLOCK_PORT", "s3cr3t")
    monkeypatch.setenv("SHERLOCK_HYBRID_ALPHA", "7")
    with pytest.raises(ConfigurationError) as told:
        load()
    lines = str(told.value).splitlines()
    assert "SHERLOCK_HYBRID_ALFA is not a setting; did you mean SHERLOCK_HYBRID_ALPHA?" in lines
    assert any(line.startswith("SHERLOCK_PORT: ") for line in lines)
    assert any(line.startswith("SHERLOCK_HYBRID_ALPHA: ") for line in lines)
    assert "s3cr3t" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"chunk_size_tokens": 100, "chunk_overlap_tokens": 51}, "SHERLOCK_CHUNK_OVERLAP_TOKENS"),
        ({"llm_provider": "openai-compatible"}, "SHERLOCK_LLM_BASE_URL"),
        ({"file_store": "minio"}, "SHERLOCK_MINIO_ACCESS_KEY"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("llm_base_url", "notaurl"),
        ("llm_base_url", "ftp://s3cr3t"),
        ("llm_base_url", "http:///v1"),
        ("llm_base_url", "http://s3cr3t:port/v1"),
        ("postgres_url", "mysql://u:s3cr3t@h/d"),
        ("postgres_url", "postgresql://u:s3cr3t@h:port/d"),
        ("postgres_url", "postgresql://u:s3cr3t[@h/d"),
    ],
)
def test_addresses_are_checked_at_start_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str
) -> None:
    monkeypatch.setenv(f"SHERLOCK_{name.upper()}", address)
    with pytest.raises(ConfigurationError, match=f"SHERLOCK_{name.upper()}: ") as told:
        load()
    assert "s3cr3t" not in str(told.value)


def test_the_endpoint_of_telemetry_goes_by_its_standard_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert load().otel_exporter_otlp_endpoint == "http://collector:4318"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "s3cr3t:4317")
    monkeypatch.setenv("SHERLOCK_OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    with pytest.raises(ConfigurationError) as told:
        load()
    refused, wrong = str(told.value).splitlines()
    assert refused.startswith("SHERLOCK_OTEL_EXPORTER_OTLP_ENDPOINT is not a setting")
    assert wrong.startswith("OTEL_EXPORTER_OTLP_ENDPOINT: it is not an address")
    assert "s3cr3t" not in str(told.value)


def test_a_socket_needs_no_host() -> None:
    url = "postgresql://owner:pw@/sherlock?host=/run/postgresql"
    assert Settings(postgres_url=url).postgres_url.get_secret_value() == url  # type: ignore[arg-type]


def test_secrets_do_not_show() -> None:
    settings = Settings(llm_api_key="k3y", postgres_url="postgresql://o:pw@h/d")  # type: ignore[arg-type]
    assert "k3y" not in repr(settings)
    assert "pw" not in repr(settings)


def test_provider_follows_the_address() -> None:
    assert Settings(llm_base_url="http://x/v1").chat_provider == "openai-compatible"
    assert Settings(rag_enabled=True).chat_provider == "local"
    assert Settings(llm_base_url="http://x/v1", llm_provider="local").chat_provider == "local"
