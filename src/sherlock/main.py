"""The HTTP server: the application and the process that serves it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.types import ASGIApp, Receive, Scope, Send

from sherlock import (
    __version__,
    async_docs_router,
    embeddings_router,
    file_batches_router,
    files_router,
    http_errors,
    nats_handler,
    observability,
    openai_router,
    openapi,
    responses_router,
    telemetry,
    uploads_router,
    vector_stores_router,
)
from sherlock.body_limit import BodyLimit
from sherlock.chat_schemas import ChatCompletionChunk
from sherlock.config import Settings
from sherlock.deps import ServicesDep, State
from sherlock.gate import RagGate
from sherlock.http_telemetry import HttpTelemetry
from sherlock.process import stop_on_signals, watched_parent
from sherlock.readiness import is_ready
from sherlock.response_object_schemas import ResponseStreamEvent
from sherlock.sampling import sampled
from sherlock.schemas import HealthObject, ReadinessObject, readiness_object
from sherlock.wiring import Model, Services, open_services

DRAIN_TIMEOUT_S = 10
"""How long answers that have begun may take to end when the process is asked to stop."""

health = APIRouter(tags=["health"])


# ── health ──────────────────────────────────────────────────────────────────


@health.head("/health", include_in_schema=False)
@health.get("/health", operation_id="health")
async def alive() -> HealthObject:
    """The process serves; nothing else is asked."""
    return {"status": "ok", "version": __version__}


NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "model": ReadinessObject,
        "description": "Some part cannot work now; `components` tells which and why.",
    }
}


@health.head("/health/ready", include_in_schema=False)
@health.get("/health/ready", operation_id="ready", responses=NOT_READY)
@health.get("/health/deep", operation_id="readyUnderItsOlderName", responses=NOT_READY)
async def ready(services: ServicesDep, response: Response) -> ReadinessObject:
    """Whether every part can work, which model each one really runs, and how ingestion is doing."""
    components, activity = await asyncio.gather(services.readiness(), services.ingest_activity())
    response.status_code = 200 if is_ready(components) else 503
    return readiness_object(components, activity, ready=is_ready(components), version=__version__)


# ── application ─────────────────────────────────────────────────────────────


class RootPath:
    """Tells the application the prefix under which a proxy shows it, whether the proxy strips it or not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.root_path:
            scope["root_path"] = self.root_path
        await self.app(scope, receive, send)


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """The application. It opens its own services and closes them, unless some are given."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        started_at = int(time.time())
        if services is not None:
            async with nats_handler.answering(services):
                yield {"services": services, "started_at": started_at}
            return
        warm_up: tuple[Model, ...] = ("embedder", "reranker", "llm")
        try:
            async with (
                open_services(settings, warm_up=warm_up) as opened,
                nats_handler.answering(opened),
                sampled(settings),
            ):
                yield {"services": opened, "started_at": started_at}
        except Exception as error:
            # uvicorn logs it with its traceback, of which the formatter lets nothing through.
            http_errors.log_unexpected(error)
            raise

    app = FastAPI(
        title="Sherlock",
        version=__version__,
        summary="OpenAI-compatible retrieval-augmented generation.",
        lifespan=lifespan,
        redirect_slashes=False,
        # The pages of FastAPI load their scripts from elsewhere; the document itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        # Its own spans and logs hold whole addresses and the inputs that failed validation.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    # The last one added is the outermost.
    routers = (
        health,
        openai_router.router,
        responses_router.router,
        embeddings_router.router,
        files_router.router,
        uploads_router.router,
        vector_stores_router.router,
        async_docs_router.router,
        file_batches_router.router,
    )
    if not settings.rag_enabled:
        app.add_middleware(RagGate, routes=[route for router in routers for route in router.routes])
    app.add_middleware(BodyLimit)
    http_errors.install(app)
    app.add_middleware(observability.RequestContext)
    app.add_middleware(HttpTelemetry)
    app.add_middleware(RootPath, root_path=settings.root_path)
    for router in routers:
        app.include_router(router)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    return app


def document_of(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the shapes of what streams consist of, which no route returns as such."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = document["components"]["schemas"]
        for shape in (ChatCompletionChunk, ResponseStreamEvent):
            piece = TypeAdapter(shape).json_schema(ref_template="#/components/schemas/{model}")
            schemas |= piece.pop("$defs") | {shape.__name__: piece}
        document["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = openapi.completed(document)
    return app.openapi_schema


# ── process ─────────────────────────────────────────────────────────────────


class Server(uvicorn.Server):
    """A uvicorn that leaves signals to us: its own way ends the process as if it had been killed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings, *, parent: int = 0) -> None:
    """Serve until SIGINT or SIGTERM; with `parent`, until that process is no longer its parent.

    Raises `SystemExit` with status 1 when the start fails.
    """
    observability.configure(settings.log_level)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # it writes whole paths, with ids and queries
        server_header=False,
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )
    server = Server(config)

    async def run(stop: asyncio.Event) -> None:
        async def stopping() -> None:
            await stop.wait()
            server.should_exit = True

        async with watched_parent(parent, stop):
            waiting = asyncio.create_task(stopping())
            try:
                await server.serve()
            finally:
                waiting.cancel()

    with (
        telemetry.exported(settings, process="serve"),
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(stop_on_signals(run))
    if not server.started:
        raise SystemExit(1)
