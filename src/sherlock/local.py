"""`sherlock up`: a whole Sherlock on one machine, its processes watched and restarted.

The API and the worker are the same processes as in any deployment. This one starts them, holds the embedded
database open while one of them is being restarted, and ends them on SIGINT or SIGTERM.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape

from sherlock.config import Settings
from sherlock.embedded import open_embedded
from sherlock.process import EX_CONFIG, cancelled, stop_on_signals
from sherlock.rag.domain.errors import DatabaseUnavailable

STOP_TIMEOUT_S = 15.0
"""How long a child may take to finish its requests or give its job back."""
RESTART_PAUSE_S = 1.0
QUICK_DEATH_S = 30.0
"""A child that fails sooner than this, three times running, will not live: everything stops."""
QUICK_DEATHS_ALLOWED = 2
READY_CHECK_S = 0.5
DATABASE_CHECK_S = 3.0

err = Console(stderr=True, highlight=False)


@dataclass(slots=True)
class Child:
    """One `sherlock` process that is started again whenever it ends by itself."""

    command: str
    environ: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    quick_deaths: int = 0
    started: float = field(default=0.0)

    async def keep_alive(self) -> None:
        """Returns only when the child will not live; cancel to stop the child."""
        try:
            while self.quick_deaths <= QUICK_DEATHS_ALLOWED:
                self.process = await self._start()
                status = await self.process.wait()
                lived_s = time.monotonic() - self.started
                killed = status < 0  # by a signal: somebody's will, or the kernel's for lack of memory
                self.quick_deaths = self.quick_deaths + 1 if lived_s < QUICK_DEATH_S and not killed else 0
                if status == EX_CONFIG:
                    return
                err.print(f"sherlock {self.command} ended with status {status}; starting it again")
                await asyncio.sleep(RESTART_PAUSE_S)
        finally:
            await self._stop()

    async def _start(self) -> asyncio.subprocess.Process:
        self.started = time.monotonic()
        # A session of its own: the terminal's Ctrl-C reaches only us, and we end the children in order.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sherlock.cli", self.command, "--exit-with-parent", str(os.getpid()),
            env=self.environ, start_new_session=True,
        )  # fmt: skip

    async def _stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def up(settings: Settings) -> int:
    """Run until a signal comes or a child cannot live; returns the exit status."""
    if not (port := free_port(settings.host, settings.port)):
        address = escape(f"{settings.host}:{settings.port}")
        err.print(f"[red]sherlock:[/red] {address} cannot be used; set SHERLOCK_PORT to another port")
        return 1
    settings = settings.model_copy(update={"port": port})
    status = 0

    async def watch(stop: asyncio.Event) -> None:
        nonlocal status
        status = await _watch(settings, stop)

    await stop_on_signals(watch)
    return status


async def _watch(settings: Settings, stop: asyncio.Event) -> int:
    err.print("Starting Sherlock: database, API, worker, models ...")
    async with contextlib.AsyncExitStack() as stack:
        if not settings.postgres_url.get_secret_value():
            await stack.enter_async_context(database_kept(settings.data_dir))
        environ = os.environ | {"SHERLOCK_RAG_ENABLED": "true", "SHERLOCK_PORT": str(settings.port)}
        children = [asyncio.ensure_future(Child(name, environ).keep_alive()) for name in ("serve", "worker")]
        greeting = asyncio.ensure_future(greet(settings))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({*children, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return 0 if stop.is_set() else 1
        finally:
            for task in (greeting, stopping, *children):
                task.cancel()
            await asyncio.gather(greeting, stopping, *children, return_exceptions=True)
            err.print("Sherlock has stopped; the data stays where it is.")


@contextlib.asynccontextmanager
async def database_kept(data_dir: Path) -> AsyncIterator[None]:
    """The embedded database, held open: one that was killed is started again."""
    database = await open_embedded(data_dir)

    async def keep() -> None:
        nonlocal database
        while True:
            await asyncio.sleep(DATABASE_CHECK_S)
            try:
                joined = await open_embedded(data_dir)  # the server that runs, or a new one
            except DatabaseUnavailable as error:
                err.print(error.message, markup=False)
            else:
                left, database = database, joined
                await left.close()

    keeping = asyncio.ensure_future(keep())
    try:
        yield
    finally:
        await cancelled(keeping)
        await database.close()


async def greet(settings: Settings) -> None:
    """Say where to go as soon as everything is ready."""
    url = local_url(settings.host, settings.port)
    began = time.monotonic()
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while not await is_ready(client, url):  # noqa: ASYNC110 - another process becomes ready
            await asyncio.sleep(READY_CHECK_S)
        model = await first_model(client, url)
    took_s = time.monotonic() - began
    err.print(f"\nSherlock is ready at {url}/v1 after {took_s:.1f} s.", markup=False, soft_wrap=True)
    if model is None:
        err.print("It lists no language model at /v1/models, so chat does not work yet.")
        return
    request = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    err.print(
        f"Try:\n\n  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d {shlex.quote(request)}\n",
        markup=False,
        soft_wrap=True,
    )
    if settings.chat_provider == "local":
        err.print(
            "Answers come from a small local model. Set SHERLOCK_LLM_BASE_URL and SHERLOCK_LLM_MODEL to use "
            "Ollama, vLLM, OpenAI or anything else that speaks the API."
        )


async def is_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health/ready")).status_code == 200
    except httpx.HTTPError:
        return False


async def first_model(client: httpx.AsyncClient, url: str) -> str | None:
    """The name of a language model to ask; `None` where the API names none."""
    try:
        listed = (await client.get(f"{url}/v1/models")).raise_for_status().json()["data"]
        return str(listed[0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


def local_url(host: str, port: int) -> str:
    """Where this machine reaches what listens on `host`, which may stand for all addresses."""
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def free_port(host: str, port: int) -> int:
    """`port`, or any free one for 0; 0 where it cannot be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return 0
        return int(probe.getsockname()[1])
