"""The command line: the processes of a deployment, and the use cases for a person at a terminal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sherlock import config
from sherlock.job_table import as_json, as_table
from sherlock.process import EX_CONFIG
from sherlock.rag.domain.errors import RequestError, SherlockError
from sherlock.rag.domain.models import (
    DEFAULT_WORKSPACE,
    ChatRequest,
    Citations,
    FileSearch,
    JobState,
    PageRequest,
    SearchOptions,
    SearchQuery,
    TextDelta,
    VectorStore,
    WorkspaceId,
)

if TYPE_CHECKING:
    from sherlock.evaluate import JudgedQuery
    from sherlock.rag.application.jobs import Jobs
    from sherlock.wiring import Rag

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
models = typer.Typer(no_args_is_help=True, help="The models that run in the process.")
app.add_typer(models, name="models")
jobs = typer.Typer(no_args_is_help=True, help="Ingest jobs: what waits, runs and failed, in all workspaces.")
app.add_typer(jobs, name="jobs")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

StoreOption = Annotated[str, typer.Option("--store", help="Name or id of the vector store.")]
ParentOption = Annotated[
    int,
    typer.Option("--exit-with-parent", hidden=True, help="Stop when this process is no longer the parent."),
]


def fail(message: str, status: int = 1) -> NoReturn:
    err.print(f"[red]sherlock:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(status)


def settings(*, rag: bool | None = None) -> config.Settings:
    try:
        found = config.load()
    except config.ConfigurationError as error:
        fail(str(error), EX_CONFIG)
    if found.ocr_languages:
        from sherlock.rag.parsers.ocr import fault

        if missing := fault(found.ocr_languages):
            fail(f"SHERLOCK_OCR_LANGUAGES: {missing}", EX_CONFIG)
    return found if rag is None else found.model_copy(update={"rag_enabled": rag})


def run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except SherlockError as error:
        fail(error.message)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


# ── processes ───────────────────────────────────────────────────────────────


@app.command()
def serve(parent: ParentOption = 0) -> None:
    """Serve the HTTP API; retrieval is on when SHERLOCK_RAG_ENABLED is true."""
    from sherlock import main

    chosen = settings()
    main.serve(chosen, parent=parent)


@app.command()
def worker(parent: ParentOption = 0) -> None:
    """Ingest files: parse, chunk, embed and index what is attached to vector stores."""
    from sherlock import worker as process

    chosen = settings(rag=True)
    run(process.serve(chosen, parent=parent))


@app.command()
def up() -> None:
    """Start everything on this machine: database, API with retrieval, and one ingest worker."""
    from sherlock import local

    chosen = settings(rag=True)
    status = asyncio.run(local.up(chosen))
    raise typer.Exit(status)


@app.command()
def migrate() -> None:
    """Bring the database schema up to date; safe to run at any time, from several places."""
    from sherlock import wiring

    chosen = settings(rag=True)
    run(wiring.migrate(chosen))
    out.print("The schema is up to date.")


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Also remove files whose bytes are gone from the file store.")
    ] = False,
) -> None:
    """Remove stored bytes whose file was deleted while the file store was down.

    Asked for by a person and never on a timer: a file store shared by two databases, or a database restored
    from an old backup, makes good files look left over. Files without bytes are counted, and stay unless
    `--records` is given: with the wrong bucket every file looks like that.
    """
    run(_gc(dry_run, records))


async def _gc(dry_run: bool, records: bool) -> None:
    from sherlock import wiring

    async with wiring.open_services(settings(rag=True)) as services:
        reconciler = services.require_rag().reconciler
        if dry_run:
            found = await reconciler.count()
            out.print(f"{found.bytes_without_record} stored objects have no file.")
            out.print(f"{found.records_without_bytes} files have no stored bytes.")
            return
        removed = await reconciler.remove(records=records)
        out.print(f"{removed.bytes_without_record} stored objects without a file were removed.")
        if records:
            out.print(f"{removed.records_without_bytes} files without stored bytes were removed.")


@models.command("prepare")
def prepare_models(
    into: Annotated[Path | None, typer.Option(help="Folder; default: SHERLOCK_MODELS_DIR.")] = None,
) -> None:
    """Convert the packaged language model ahead of the first start (used by the image)."""
    from sherlock import local_models

    chosen = settings()
    folder = into or chosen.models_dir or chosen.data_dir / "models"
    try:
        ready = local_models.prepare(folder, encoder=chosen.encoder_model, reranker=chosen.reranker_model)
    except SherlockError as error:
        fail(error.message)
    names = ", ".join(model.name for model in ready)
    out.print(f"Models are ready: {names}.", markup=False, soft_wrap=True)


# ── jobs ────────────────────────────────────────────────────────────────────

JobArgument = Annotated[int, typer.Argument(metavar="ID", help="Number of the job, as `list` shows it.")]
WorkspaceOption = Annotated[str | None, typer.Option("--workspace", help="Default: all of them.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table; times are Unix seconds.")]


@jobs.command("list")
def list_jobs(
    status: Annotated[JobState | None, typer.Option("--status", help="Default: any.")] = None,
    workspace: WorkspaceOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000)] = 50,
    json: JsonOption = False,
) -> None:
    """Show jobs, the newest first, with their age, attempt and the reason they failed."""

    async def work(jobs: "Jobs") -> None:
        found = await jobs.list(status, WorkspaceId(workspace) if workspace else None, limit)
        print(as_json(found) if json else as_table(found))

    run(_with_jobs(work))


@jobs.command("show")
def show_job(job_id: JobArgument, json: JsonOption = False) -> None:
    """Show one job."""

    async def work(jobs: "Jobs") -> None:
        job = await jobs.get(job_id)
        print(as_json(job) if json else as_table([job]))

    run(_with_jobs(work))


@jobs.command("retry")
def retry_job(
    job_id: Annotated[int | None, typer.Argument(metavar="ID")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that failed.")] = False,
    workspace: WorkspaceOption = None,
) -> None:
    """Queue the file of a failed or cancelled job anew, or with --failed those of all failed jobs."""
    if (job_id is None) != failed or (workspace and not failed):
        fail("give either the number of a job or --failed (with or without --workspace)", 2)

    async def work(jobs: "Jobs") -> None:
        if job_id is not None:
            await jobs.retry(job_id)
            out.print("The file was queued anew.")
        else:
            retried = await jobs.retry_failed(WorkspaceId(workspace) if workspace else None)
            out.print(f"{retried} files were queued anew.")

    run(_with_jobs(work))


@jobs.command("cancel")
def cancel_job(job_id: JobArgument) -> None:
    """End a job that waits or runs; its file ends `cancelled`."""

    async def work(jobs: "Jobs") -> None:
        await jobs.cancel(job_id)
        out.print("The job was cancelled.")

    run(_with_jobs(work))


async def _with_jobs(work: "Callable[[Jobs], Awaitable[None]]") -> None:
    from sherlock import wiring

    async with wiring.open_services(settings(rag=True)) as services:
        await work(services.require_rag().jobs)


# ── use cases ───────────────────────────────────────────────────────────────


@app.command()
def ingest(
    paths: Annotated[list[Path], typer.Argument(exists=True, readable=True, help="Files and folders.")],
    store: StoreOption,
) -> None:
    """Upload files into a vector store, made if missing, and wait until all are searchable."""
    files = sorted({file for path in paths for file in ([path] if path.is_file() else walk(path))})
    if not files:
        fail("there are no files under the given paths")
    run(_ingest(files, store))


def walk(folder: Path) -> list[Path]:
    """The files below a folder, hidden ones left out."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


async def _ingest(files: list[Path], store_name: str) -> None:
    from sherlock import wiring
    from sherlock.worker import Worker

    chosen = settings(rag=True)
    async with wiring.open_services(chosen) as services:
        rag = services.require_rag()
        store = await find_store(rag, store_name)
        if store is None:
            store = await rag.vector_stores.create(DEFAULT_WORKSPACE, name=store_name)
        stop = asyncio.Event()
        # Jobs are durable: a worker that runs elsewhere helps, and what is left when this is interrupted is
        # done by the next one.
        worker = Worker(rag.queue, rag.ingestor, slots=chosen.workers, lease_s=chosen.job_lease_s)
        working = asyncio.ensure_future(worker.run(stop))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=err) as progress:
                attached = await _attach(rag, store, files, progress)
                completed = await _wait(rag, store, attached, working, progress)
        finally:
            stop.set()
            await working
        told = f"{completed} of {len(files)} files are in store {store.name} ({store.id})."
        out.print(told, markup=False, soft_wrap=True)
    if completed < len(files):
        raise typer.Exit(1)


async def _attach(rag: "Rag", store: VectorStore, files: list[Path], progress: Progress) -> dict[str, Path]:
    """Upload and attach each file; those that were refused are reported and left out. File id -> path."""
    from sherlock.rag.application.files import UploadDetails

    async def details() -> UploadDetails:
        return UploadDetails("assistants", expires_after_s=None)

    attached = {}
    bar = progress.add_task("upload", total=len(files))
    for path in files:
        try:
            stored = await rag.files.upload(DEFAULT_WORKSPACE, path.name, read(path), details)
            await rag.vector_stores.attach(
                DEFAULT_WORKSPACE, store.id, stored.id, attributes=None, chunking=None
            )
            attached[stored.id] = path
        except RequestError as error:
            report("refused", path, error.message)
        progress.advance(bar)
    return attached


def report(what: str, path: Path, reason: str) -> None:
    err.print(f"[red]{what}[/red] {escape(f'{path}: {reason}')}", soft_wrap=True)


async def _wait(
    rag: "Rag",
    store: VectorStore,
    attached: dict[str, Path],
    working: "asyncio.Future[None]",
    progress: Progress,
) -> int:
    """Wait until every file has ended; returns how many completed."""
    completed = 0
    bar = progress.add_task("ingest", total=len(attached))
    for file_id, path in attached.items():
        while True:
            member = await rag.vector_stores.wait(DEFAULT_WORKSPACE, store.id, file_id, 1.0)
            if member.status != "in_progress":
                break
            if working.done():
                working.result()
        if member.status == "completed":
            completed += 1
        else:
            reason = member.last_error.message if member.last_error else member.status
            report(member.status, path, reason)
        progress.advance(bar)
    return completed


@app.command()
def search(
    query: str,
    store: StoreOption,
    limit: Annotated[
        int | None, typer.Option(min=1, max=50, help="Default: SHERLOCK_RETRIEVAL_TOP_K.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="0 keyword only, 1 dense only.")] = None,
) -> None:
    """Show the best chunks for a query, with their scores."""
    run(_search(query, store, limit, alpha))


async def _search(query: str, store_name: str, limit: int | None, alpha: float | None) -> None:
    from sherlock import wiring

    chosen = settings(rag=True)
    async with wiring.open_services(chosen) as services:
        rag = services.require_rag()
        store = await find_store(rag, store_name) or fail(f"there is no vector store {store_name!r}")
        found = await rag.retriever.search(
            DEFAULT_WORKSPACE,
            SearchQuery(
                texts=(query,),
                vector_store_ids=(store.id,),
                options=SearchOptions(
                    limit=limit or chosen.retrieval_top_k,
                    alpha=chosen.hybrid_alpha if alpha is None else alpha,
                ),
            ),
        )
    for result in found.results:
        hit = result.candidate
        page = f", page {hit.page}" if hit.page else ""
        out.print(f"[bold]{result.score:.3f}[/bold]  {escape(hit.filename)}, chunk {hit.chunk_index}{page}")
        out.print(f"       {escape(' '.join(hit.text.split())[:300])}\n", soft_wrap=True)
    if not found.results:
        out.print("Nothing was found.")
    err.print("; ".join([f"stages: {', '.join(found.stages)}", *found.degraded]), markup=False)


@app.command()
def ask(question: str, store: StoreOption) -> None:
    """Answer a question from a vector store, and name the sources."""
    run(_ask(question, store))


async def _ask(question: str, store_name: str) -> None:
    from sherlock import wiring

    chosen = settings(rag=True)
    async with wiring.open_services(chosen) as services:
        store = await find_store(services.require_rag(), store_name) or fail(
            f"there is no vector store {store_name!r}"
        )
        request = ChatRequest(
            model=services.chat_model.name if services.chat_model else "",
            messages=({"role": "user", "content": question},),
            file_search=FileSearch(
                (store.id,), SearchOptions(limit=chosen.retrieval_top_k, alpha=chosen.hybrid_alpha)
            ),
        )
        async for event in services.chat.answer(DEFAULT_WORKSPACE, request):
            if isinstance(event, TextDelta):
                out.print(event.text, end="", markup=False, soft_wrap=True)
            elif isinstance(event, Citations):
                out.print()
                for citation in event.citations:
                    page = f", page {citation.page}" if citation.page else ""
                    out.print(
                        f"  {citation.filename}{page}: {citation.quote!r}", markup=False, soft_wrap=True
                    )
    out.print()


@app.command("eval")
def evaluate_search(
    collection: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder with corpus, queries and judgements.")
    ],
    alpha: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="May be repeated. Default: SHERLOCK_HYBRID_ALPHA."),
    ] = None,
    rerank: Annotated[bool, typer.Option(help="Measure each alpha with the reranker too.")] = False,
    limit: Annotated[
        int, typer.Option(min=10, max=1_000, help="Results of a search; recall looks at all.")
    ] = 50,
    queries: Annotated[int | None, typer.Option(min=1, help="Ask only the first so many.")] = None,
) -> None:
    """Measure search on a judged collection, in a vector store made for it and removed afterwards.

    The folder holds corpus.jsonl (id, title, text), queries.jsonl (id, text) and qrels.tsv (query, document,
    grade), each possibly gzipped.
    """
    from sherlock import evaluate

    try:
        documents = list(evaluate.load_documents(collection))
        judged = evaluate.load_queries(collection)[:queries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fail("the collection cannot be read: it needs corpus.jsonl, queries.jsonl and qrels.tsv")
    if not documents or not judged:
        fail("the collection has no documents, or no query with a relevant one")
    chosen = settings(rag=True)
    ways = [
        SearchOptions(limit=limit, alpha=weight, rerank=reranked)
        for weight in alpha or [chosen.hybrid_alpha]
        for reranked in ([False, True] if rerank else [False])
    ]
    run(_evaluate(chosen, collection.name, documents, judged, ways))


async def _evaluate(
    chosen: config.Settings,
    name: str,
    documents: Sequence[tuple[str, str]],
    judged: "Sequence[JudgedQuery]",
    ways: Sequence[SearchOptions],
) -> None:
    from sherlock import evaluate, wiring
    from sherlock.judged_store import ingested

    # A model that loads while the first query waits would count as a slow search.
    warm_up: set[wiring.Model] = {"embedder", "reranker"} if ways[-1].rerank else {"embedder"}
    async with wiring.open_services(chosen, warm_up=warm_up) as services:
        rag = services.require_rag()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err) as progress:
            bar = progress.add_task("ingest", total=len(documents))
            async with ingested(
                rag,
                documents,
                name=name,
                slots=chosen.workers,
                lease_s=chosen.job_lease_s,
                progress=lambda count: progress.advance(bar, count),
            ) as store:
                for options in ways:
                    template = SearchQuery((), (store.vector_store_id,), options)
                    report = await evaluate.run(
                        rag.retriever, DEFAULT_WORKSPACE, judged, template, document_of=store.document_of
                    )
                    way = f"alpha {options.alpha:g}{', reranked' if options.rerank else ''}"
                    out.print(f"{name}, {way}: {report}", markup=False, soft_wrap=True)


async def find_store(rag: "Rag", name_or_id: str) -> VectorStore | None:
    """The store of that id, else the newest of that name; an expired one is as none."""
    page = PageRequest(limit=100)
    while True:
        listed = await rag.vector_stores.list(DEFAULT_WORKSPACE, page)
        for store in listed.items:
            if name_or_id in (store.id, store.name) and not store.expired:
                return store
        if not listed.has_more:
            return None
        page = PageRequest(limit=100, after=listed.items[-1].id)


async def read(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, 1 << 20):
            yield piece


if __name__ == "__main__":
    app()
