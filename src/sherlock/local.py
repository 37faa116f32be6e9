"""`sherlock up`: a whole Sherlock on one machine, its processes watched and restarted.

The API and the worker are the same processes as in any deployment. This one starts them, holds the embedded
database open while one of them is being restarted, and ends them on SIGINT or SIGTERM.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field

import httpx
from rich.console import Console

from sherlock.config import Settings
from sherlock.embedded import open_embedded
from sherlock.process import stop_on_signals

STOP_TIMEOUT_S = 15.0
"""How long a child may take to finish its requests or give its job back."""
RESTART_PAUSE_S = 1.0
QUICK_DEATH_S = 30.0
"""A child that fails sooner than this, three times running, will not live: everything stops."""
QUICK_DEATHS_ALLOWED = 2

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
                if status == os.EX_CONFIG:
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
    address = f"{settings.host}:{settings.port}"
    if not port_is_free(settings.host, settings.port):
        err.print(f"[red]sherlock:[/red] {address} is in use; set SHERLOCK_PORT to another port")
        return 1
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
            await stack.enter_async_context(await open_embedded(settings.data_dir))
        environ = os.environ | {"SHERLOCK_RAG_ENABLED": "true"}
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


async def greet(settings: Settings) -> None:
    """Say where to go as soon as everything is ready."""
    url = f"http://{settings.host}:{settings.port}"
    began = time.monotonic()
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                ready = await client.get(f"{url}/health/ready")
                if ready.status_code == 200:
                    break
            await asyncio.sleep(0.25)
        listed = await client.get(f"{url}/v1/models")
    model = listed.json()["data"][0]["id"]
    err.print(f"\nSherlock is ready at [bold]{url}/v1[/bold] after {time.monotonic() - began:.1f} s. Try:\n")
    err.print(
        f"  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}\'\n',
        markup=False,
        soft_wrap=True,
    )
    if settings.chat_provider == "local":
        err.print(
            "Answers come from a small local model. Set SHERLOCK_LLM_BASE_URL and SHERLOCK_LLM_MODEL to use "
            "Ollama, vLLM, OpenAI or anything else that speaks the API."
        )


def port_is_free(host: str, port: int) -> bool:
    if port == 0:
        return True
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
