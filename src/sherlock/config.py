"""Settings: environment variables with the prefix `SHERLOCK_`, read once by the entry points.

A wrong value or an unknown name stops the start with a sentence that names it. Units stand in the names.
"""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "SHERLOCK_"

DEFAULT_SYSTEM_PROMPT = (
    "Answer the question from the numbered passages. After each statement put the number of its passage in "
    "square brackets, like [1]. If the passages do not hold the answer, say so."
)


class ConfigurationError(Exception):
    """The settings cannot be used; the message lists what is wrong, one line each."""


class Settings(BaseSettings):
    """Every setting, its default and its bounds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, populate_by_name=True)

    host: str = "127.0.0.1"
    port: int = Field(8802, ge=0, le=65535)
    root_path: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    otel_exporter_otlp_endpoint: str = Field("", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """Where telemetry is sent, as OTLP over HTTP; empty: nowhere. The one name that is not ours."""
    content_tracing: bool = False
    """Whether spans carry texts of documents, questions and answers."""

    rag_enabled: bool = Field(False, validation_alias=AliasChoices("SHERLOCK_RAG_ENABLED", "RAG_ENABLED"))

    postgres_url: SecretStr = SecretStr("")
    """The owner's address, `postgresql://user:password@host/database`; empty: embedded, in `data_dir`."""
    postgres_app_password: SecretStr = SecretStr("")
    """Password of the role `sherlock_app`; empty: derived from the owner's password."""
    postgres_pool_size: int = Field(10, ge=2, le=200)

    data_dir: Path = Path(".data")
    models_dir: Path | None = None
    """Where converted and mounted models lie; unset: `data_dir/models`."""
    file_store: Literal["local", "minio"] = "local"
    minio_endpoint: str = "arc-storage:9000"
    minio_access_key: SecretStr = SecretStr("")
    minio_secret_key: SecretStr = SecretStr("")
    minio_bucket: str = Field("sherlock-files", min_length=3, max_length=63)
    minio_secure: bool = False
    max_file_bytes: int = Field(52_428_800, ge=1)

    nats_url: SecretStr = SecretStr("")
    """`nats://user:password@host:4222`, several with commas between; empty: no messages."""
    nats_queue_group: str = Field("sherlock_workers", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Each message goes to one member; also the name of the durable consumer of ingest requests."""

    llm_provider: Literal["", "openai-compatible", "local"] = ""
    """Empty: `openai-compatible` when `llm_base_url` is set, else `local` when RAG is on."""
    llm_base_url: str = ""
    llm_api_key: SecretStr = SecretStr("")
    llm_model: str = ""
    llm_context_tokens: int | None = Field(None, ge=128)
    """Bounds passages and history together; unset: 800 for the local model, 6,000 for others."""
    llm_timeout_s: float = Field(120.0, gt=0, le=600)
    """Longest wait for the first and for each further piece of an answer."""
    system_prompt: str = DEFAULT_SYSTEM_PROMPT

    encoder_model: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        min_length=1,
        validation_alias=AliasChoices("SHERLOCK_ENCODER_MODEL", "SHERLOCK_EMBEDDING_MODEL"),
    )
    """A hub name, a folder, or `hash`: a deterministic embedder that needs no model."""
    reranker_model: str = ""
    """Empty: ms-marco-MiniLM-L-6-v2 where a folder or cache has it, else the packaged L-12; `none`: off."""
    rerank_budget_ms: int = Field(400, ge=0)

    hybrid_alpha: float = Field(0.7, ge=0, le=1)
    chunk_size_tokens: int = Field(512, ge=100, le=4096)
    chunk_overlap_tokens: int = Field(50, ge=0)
    retrieval_candidate_k: int = Field(50, ge=1, le=500)
    retrieval_top_k: int = Field(5, ge=1, le=50)
    query_rewrite_timeout_s: float = Field(5.0, ge=0, le=60)
    """How long rewriting a question may take before it is searched for as it stands; 0: never rewrite."""
    sync_timeout_s: float = Field(30.0, gt=0)

    queue_max_jobs: int = Field(100_000, ge=1)
    """With so many jobs waiting, attaching files answers 429."""
    workers: int = Field(1, ge=1, le=64)
    """Jobs that one worker process runs side by side."""
    job_lease_s: float = Field(30.0, ge=1)
    """How long a killed worker's job stays untouched; a living worker renews three times as often."""
    job_memory_bytes: int = Field(1 << 30, ge=256 << 20)
    """What the process that reads a file may hold; it begins with some 80 MB."""
    job_timeout_s: float = Field(900.0, ge=1)
    """Longest time to read one file into chunks, not to embed them: 1 MB of text takes about a second."""

    ocr_languages: str = ""
    """As Tesseract names them, `deu+eng`; empty: pages of a PDF that are pictures are passed over."""
    ocr_pages: int = Field(50, ge=1, le=10_000)
    """Of one file, at most; a page takes a second or a few."""

    @field_validator("llm_base_url", "otel_exporter_otlp_endpoint")
    @classmethod
    def _check_http_address(cls, address: str) -> str:
        if address:
            check_address(address, ("http", "https"))
        return address

    @field_validator("postgres_url")
    @classmethod
    def _check_postgres_url(cls, address: SecretStr) -> SecretStr:
        if url := address.get_secret_value():
            # Libraries name their driver in the scheme; only the database is of interest.
            check_address(url, ("postgresql", "postgres", "postgresql+asyncpg"), host_needed=False)
        return address

    @field_validator("nats_url")
    @classmethod
    def _check_nats_url(cls, addresses: SecretStr) -> SecretStr:
        if urls := addresses.get_secret_value():
            for url in urls.split(","):
                check_address(url.strip(), ("nats", "tls"))
        return addresses

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.chunk_overlap_tokens > self.chunk_size_tokens // 2:
            raise ValueError(
                "SHERLOCK_CHUNK_OVERLAP_TOKENS may be at most half of SHERLOCK_CHUNK_SIZE_TOKENS"
            )
        if self.llm_provider == "openai-compatible" and not self.llm_base_url:
            raise ValueError("SHERLOCK_LLM_PROVIDER=openai-compatible needs SHERLOCK_LLM_BASE_URL")
        if self.file_store == "minio" and not (
            self.minio_access_key.get_secret_value() and self.minio_secret_key.get_secret_value()
        ):
            raise ValueError(
                "SHERLOCK_FILE_STORE=minio needs SHERLOCK_MINIO_ACCESS_KEY and SHERLOCK_MINIO_SECRET_KEY"
            )
        return self

    @property
    def chat_provider(self) -> Literal["openai-compatible", "local"] | None:
        """Which chat model answers; `None`: none is configured."""
        if self.llm_provider:
            return self.llm_provider
        if self.llm_base_url:
            return "openai-compatible"
        return "local" if self.rag_enabled else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def check_address(address: str, schemes: Sequence[str], *, host_needed: bool = True) -> None:
    """Raises `ValueError` with a sentence that does not quote the address: it may hold a password."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("it is not an address: its host or port cannot be read") from None
    if parts.scheme not in schemes or (host_needed and not host):
        raise ValueError(f"it is not an address that begins with {schemes[0]}:// and names a host")


def known_names() -> set[str]:
    """Every environment variable that means something to Sherlock."""
    names = {PREFIX + name.upper() for name in Settings.model_fields}
    return names - {"SHERLOCK_OTEL_EXPORTER_OTLP_ENDPOINT"} | {"SHERLOCK_EMBEDDING_MODEL"}


def load() -> Settings:
    """Settings from the environment. Raises `ConfigurationError` that names every fault, but no value."""
    known = known_names()
    faults = []
    for name in sorted(n for n in os.environ if n.startswith(PREFIX) and n not in known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        faults.append(f"{name} is not a setting; did you mean {near[0]}?")
    try:
        settings = Settings()
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False, include_context=False):
            where = str(fault["loc"][0]) if fault["loc"] else ""
            name = where if where.isupper() else PREFIX + where.upper() if where else ""
            told = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{name}: {told}" if name else told)
        raise ConfigurationError("\n".join(faults)) from None
    if faults:
        raise ConfigurationError("\n".join(faults))
    return settings
