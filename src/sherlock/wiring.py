"""The composition root: settings in, use cases out. The only module (beside tests) that names an adapter."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from sherlock import local_models
from sherlock.config import Settings
from sherlock.graph import Chat
from sherlock.ingest_progress import ProgressMessages
from sherlock.process import cancelled
from sherlock.rag.adapters.chat_model import OpenAIChatModel
from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.application.rewrite import Rewriter
from sherlock.rag.domain.errors import RagDisabled, Unavailable
from sherlock.rag.domain.messages import IngestProgress, IngestRequests, MessageBroker, Silent
from sherlock.rag.domain.models import ChunkingStrategy, QueueActivity
from sherlock.rag.domain.ports import (
    ChatModel,
    Embedder,
    FileStore,
    IngestQueue,
    Reranker,
    ResponseStore,
    TokenCounter,
)
from sherlock.rag.tokens import Cl100kCounter
from sherlock.readiness import Check, Readiness, off, proven_by
from sherlock.responses import Responses

if TYPE_CHECKING:
    from sherlock.rag.adapters.postgres import Database
    from sherlock.rag.application.activity import Activity
    from sherlock.rag.application.file_batches import FileBatches
    from sherlock.rag.application.files import Files
    from sherlock.rag.application.housekeeping import Housekeeper
    from sherlock.rag.application.ingest import Ingestor
    from sherlock.rag.application.jobs import Jobs
    from sherlock.rag.application.reconcile import Reconciler
    from sherlock.rag.application.uploads import Uploads
    from sherlock.rag.application.vector_stores import VectorStores

log = logging.getLogger(__name__)

MIGRATE_AGAIN_S = 2.0
RECONCILE_EVERY_S = 6 * 3600.0
RECONCILE_GRACE_S = 60.0
REMOTE_CONTEXT_TOKENS = 6_000
LOCAL_CONTEXT_TOKENS = 800
"""The packaged model loses facts in longer prompts."""


@dataclass(frozen=True, slots=True)
class Rag:
    """Everything that needs retrieval to be on."""

    files: "Files"
    uploads: "Uploads"
    vector_stores: "VectorStores"
    file_batches: "FileBatches"
    retriever: Retriever
    embedder: Embedder
    ingestor: "Ingestor"
    queue: IngestQueue
    ingest_requests: IngestRequests
    response_store: ResponseStore
    jobs: "Jobs"
    housekeeper: "Housekeeper"
    reconciler: "Reconciler"
    activity: "Activity"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    chat: Chat
    responses: Responses
    chat_model: ChatModel | None
    """`None`: none is configured."""
    rag: Rag | None
    """`None`: RAG is off."""
    counter: TokenCounter
    readiness: Readiness
    broker: MessageBroker | None = None
    """`None`: messages are off. It connects when it is started."""

    def require_rag(self) -> Rag:
        if self.rag is None:
            raise RagDisabled
        return self.rag

    async def ingest_activity(self) -> QueueActivity | None:
        """How the ingest queue stands; `None` where RAG is off, or the database does not answer."""
        return await self.rag.activity() if self.rag is not None else None


Model = Literal["embedder", "reranker", "llm"]


@asynccontextmanager
async def open_services(settings: Settings, *, warm_up: Collection[Model] = ()) -> AsyncIterator[Services]:
    """Build everything the settings ask for, and close it in reverse.

    Nothing outside need be up yet: what is down says so through `readiness`, and recovers by itself. Models
    in `warm_up` begin to load in the background, the others at first use.
    """
    async with AsyncExitStack() as stack:
        counter = Cl100kCounter()
        chat_model = _chat_model(settings, stack, warm_up)
        parts = ("postgres", "file_store", "embedder", "reranker", "llm", "nats")
        checks: dict[str, Check] = dict.fromkeys(parts, off)
        if chat_model is not None:
            checks["llm"] = chat_model.status
        broker = _broker(settings, stack)
        progress: IngestProgress = Silent()
        if broker is not None:
            checks["nats"] = broker.status
            progress = ProgressMessages(broker)
        rag = None
        if settings.rag_enabled:
            rewriter = _rewriter(settings, chat_model)
            rag = await _rag(settings, checks, stack, warm_up, rewriter, progress)
        chat = Chat(
            chat_model,
            rag.retriever if rag else None,
            counter,
            system_prompt=settings.system_prompt,
            trim_history=settings.chat_provider == "local",
        )
        responses = Responses(chat, rag.response_store if rag else None)
        yield Services(settings, chat, responses, chat_model, rag, counter, Readiness(checks), broker)


async def migrate(settings: Settings) -> None:
    """Bring the schema up to date. Raises `DatabaseUnavailable`."""
    async with AsyncExitStack() as stack:
        owner_url = await _owner_url(settings, stack)
        await _migrate(settings, owner_url, _embedder(settings, stack, ()))


# ── parts ───────────────────────────────────────────────────────────────────


async def _rag(
    settings: Settings,
    checks: dict[str, Check],
    stack: AsyncExitStack,
    warm_up: Collection[Model],
    rewriter: Rewriter | None,
    progress: IngestProgress,
) -> Rag:
    # Imported here, as in the other parts: a gateway without RAG starts without them.
    from sherlock.rag.adapters.pgvector import PgvectorIndex
    from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
    from sherlock.rag.adapters.postgres_file_batches import PostgresFileBatches
    from sherlock.rag.adapters.postgres_ingest_requests import PostgresIngestRequests
    from sherlock.rag.adapters.postgres_job_log import PostgresJobLog
    from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
    from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
    from sherlock.rag.adapters.postgres_reconciliation import PostgresReconciliation
    from sherlock.rag.adapters.postgres_responses import PostgresResponses
    from sherlock.rag.adapters.postgres_uploads import PostgresUploadRecords
    from sherlock.rag.adapters.reading_process import ProcessReader
    from sherlock.rag.application.activity import Activity
    from sherlock.rag.application.file_batches import FileBatches
    from sherlock.rag.application.files import Files
    from sherlock.rag.application.housekeeping import Housekeeper
    from sherlock.rag.application.ingest import Ingestor
    from sherlock.rag.application.jobs import Jobs
    from sherlock.rag.application.measured_embedder import MeasuredEmbedder
    from sherlock.rag.application.objects import Objects
    from sherlock.rag.application.queue_limit import QueueLimit
    from sherlock.rag.application.reconcile import Reconciler
    from sherlock.rag.application.uploads import Uploads
    from sherlock.rag.application.vector_stores import VectorStores

    embedder = MeasuredEmbedder(_embedder(settings, stack, warm_up))
    reranker = _reranker(settings, stack, warm_up)
    file_store = _file_store(settings, stack)
    database = await _database(settings, embedder, stack)
    catalog = PostgresCatalog(database)
    index = PgvectorIndex(database)
    queue = PostgresIngestQueue(database)
    stack.push_async_callback(queue.close)
    reader = ProcessReader(
        memory_bytes=settings.job_memory_bytes,
        timeout_s=settings.job_timeout_s,
        ocr_languages=settings.ocr_languages,
        ocr_pages=settings.ocr_pages,
    )
    stack.push_async_callback(reader.close)
    ingest_requests = PostgresIngestRequests(database)
    stack.push_async_callback(ingest_requests.close)
    vector_stores = VectorStores(
        catalog,
        index,
        embedder,
        ChunkingStrategy(settings.chunk_size_tokens, settings.chunk_overlap_tokens),
        QueueLimit(queue, settings.queue_max_jobs),
    )
    checks["postgres"] = proven_by(database.check)
    checks["embedder"] = embedder.status
    if reranker is not None:
        checks["reranker"] = reranker.status
    objects = Objects(PostgresLooseObjects(database), file_store)
    files = Files(catalog, file_store, objects, settings.max_file_bytes)
    uploads = Uploads(PostgresUploadRecords(database), files, file_store)
    responses = PostgresResponses(database)
    reconciler = Reconciler(
        files, PostgresReconciliation(database), every_s=RECONCILE_EVERY_S, grace_s=RECONCILE_GRACE_S
    )
    checks["file_store"] = reconciler.file_store_status
    return Rag(
        files=files,
        uploads=uploads,
        vector_stores=vector_stores,
        file_batches=FileBatches(PostgresFileBatches(database), vector_stores),
        retriever=Retriever(
            catalog,
            index,
            embedder,
            reranker,
            candidates=settings.retrieval_candidate_k,
            rerank_budget_s=settings.rerank_budget_ms / 1000,
            rewriter=rewriter,
        ),
        embedder=embedder,
        ingestor=Ingestor(file_store, index, embedder, reader, progress),
        queue=queue,
        ingest_requests=ingest_requests,
        response_store=responses,
        jobs=Jobs(PostgresJobLog(database), catalog),
        housekeeper=Housekeeper(catalog, file_store, uploads, responses, ingest_requests, index, objects),
        reconciler=reconciler,
        activity=Activity(queue),
    )


class _Loadable(Protocol):
    """A model that loads at first use, or in the background when it is started."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


def _keep(model: _Loadable, stack: AsyncExitStack, *, warm: bool) -> None:
    stack.push_async_callback(model.close)
    if warm:
        model.start()


def _models_dir(settings: Settings) -> Path:
    return settings.models_dir or settings.data_dir / "models"


def _chat_model(settings: Settings, stack: AsyncExitStack, warm_up: Collection[Model]) -> ChatModel | None:
    if settings.chat_provider == "openai-compatible":
        remote = OpenAIChatModel(
            settings.llm_base_url,
            settings.llm_api_key.get_secret_value(),
            settings.llm_model,
            context_tokens=settings.llm_context_tokens or REMOTE_CONTEXT_TOKENS,
            timeout_s=settings.llm_timeout_s,
        )
        stack.push_async_callback(remote.close)
        return remote
    if settings.chat_provider == "local":
        from sherlock.rag.adapters.local_chat_model import LocalChatModel

        local = LocalChatModel(
            lambda: local_models.local_llm_folder(_models_dir(settings)),
            context_tokens=settings.llm_context_tokens or LOCAL_CONTEXT_TOKENS,
            timeout_s=settings.llm_timeout_s,
        )
        _keep(local, stack, warm="llm" in warm_up)
        return local
    return None


def _rewriter(settings: Settings, chat_model: ChatModel | None) -> Rewriter | None:
    """None with the local model: of 24 follow-up questions it rewrote none, and took 6 s for each."""
    if chat_model is None or settings.chat_provider == "local" or not settings.query_rewrite_timeout_s:
        return None
    return Rewriter(chat_model, settings.query_rewrite_timeout_s)


def _embedder(settings: Settings, stack: AsyncExitStack, warm_up: Collection[Model]) -> Embedder:
    if settings.encoder_model == "hash":
        from sherlock.rag.adapters.hash_embedder import HashEmbedder

        hashed = HashEmbedder()
        stack.push_async_callback(hashed.close)
        return hashed
    from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder

    models_dir = _models_dir(settings)
    found = local_models.find_encoder(settings.encoder_model, models_dir)
    embedder = SentenceTransformersEmbedder(
        found.name if found else settings.encoder_model,
        lambda: local_models.encoder_folder(settings.encoder_model, models_dir),
        dimension=local_models.encoder_dimension(found.folder) if found else None,
        # A folder of models may be mounted read-only; the data folder is ours.
        exports=list(dict.fromkeys([models_dir, settings.data_dir / "models"])),
    )
    _keep(embedder, stack, warm="embedder" in warm_up)
    return embedder


def _reranker(settings: Settings, stack: AsyncExitStack, warm_up: Collection[Model]) -> Reranker | None:
    if settings.reranker_model == "none":
        return None
    from sherlock.rag.adapters.reranker import CrossEncoderReranker

    models_dir = _models_dir(settings)
    found = local_models.find_reranker(settings.reranker_model, models_dir)
    reranker = CrossEncoderReranker(
        found.name if found else settings.reranker_model or local_models.DEFAULT_RERANKER,
        lambda: local_models.reranker_folder(settings.reranker_model, models_dir),
    )
    _keep(reranker, stack, warm="reranker" in warm_up)
    return reranker


def _file_store(settings: Settings, stack: AsyncExitStack) -> FileStore:
    if settings.file_store == "local":
        from sherlock.rag.adapters.local_files import LocalFileStore

        folder = LocalFileStore(settings.data_dir / "files")
        stack.push_async_callback(folder.close)
        return folder
    from sherlock.rag.adapters.minio import MinioFileStore

    bucket = MinioFileStore(
        settings.minio_endpoint,
        settings.minio_access_key.get_secret_value(),
        settings.minio_secret_key.get_secret_value(),
        settings.minio_bucket,
        secure=settings.minio_secure,
    )
    stack.push_async_callback(bucket.close)
    return bucket


def _broker(settings: Settings, stack: AsyncExitStack) -> MessageBroker | None:
    url = settings.nats_url.get_secret_value()
    if not url:
        return None
    from sherlock.rag.adapters.nats_broker import NatsBroker

    broker = NatsBroker(url, name="sherlock")
    stack.push_async_callback(broker.close)
    return broker


async def _owner_url(settings: Settings, stack: AsyncExitStack) -> str:
    if url := settings.postgres_url.get_secret_value():
        return url
    from sherlock.embedded import open_embedded

    embedded = await stack.enter_async_context(await open_embedded(settings.data_dir))
    return embedded.owner_url


async def _database(settings: Settings, embedder: Embedder, stack: AsyncExitStack) -> "Database":
    from sherlock.rag.adapters.postgres import Database, service_url

    owner_url = await _owner_url(settings, stack)
    password = settings.postgres_app_password.get_secret_value()
    database = await Database.open(
        service_url(owner_url, password or None), pool_size=settings.postgres_pool_size
    )
    stack.push_async_callback(database.close)
    try:
        await _migrate(settings, owner_url, embedder)
    except Unavailable as error:
        log.warning("database not ready at start; trying again", extra={"reason": error.message})
        trying = asyncio.ensure_future(_keep_migrating(settings, owner_url, embedder))
        stack.push_async_callback(cancelled, trying)
    return database


async def _migrate(settings: Settings, owner_url: str, embedder: Embedder) -> None:
    from sherlock.rag.adapters.postgres import migrate

    # Unavailable while a model that must be fetched first has not said how long its vectors are.
    dimension = embedder.encoder.dimension
    password = settings.postgres_app_password.get_secret_value()
    await migrate(owner_url, app_password=password or None, dimension=dimension)


async def _keep_migrating(settings: Settings, owner_url: str, embedder: Embedder) -> None:
    while True:
        await asyncio.sleep(MIGRATE_AGAIN_S)
        with contextlib.suppress(Unavailable):
            await _migrate(settings, owner_url, embedder)
            log.info("database is up to date")
            return
