"""Real Sherlock processes for tests: started on free ports, their output kept, ended with the test."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import openai

from sherlock.embedded import open_embedded

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 30.0
REPO = Path(__file__).resolve().parents[2]
MODELS = REPO / ".cache" / "models"
"""Converted models, kept between test runs: the conversion takes half a minute."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Process:
    command: str
    popen: "subprocess.Popen[bytes]"
    output: Path

    def kill(self) -> None:
        """As `kill -9` would."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """As Ctrl-C in a service manager would; returns the exit status."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"sherlock {self.command} did not stop:\n{self.text()}") from None

    def text(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass(slots=True)
class Deployment:
    """Processes that share a data folder, a port and settings."""

    folder: Path
    environ: Mapping[str, str]
    port: int
    ready_path: str = "/health/ready"
    started: list[Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=120)

    def start(self, *command: str, **environ: str) -> Process:
        output = self.folder / f"{command[0]}-{time.monotonic_ns()}.log"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "sherlock.cli", *command],
                env={**self.environ, **environ},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(command[0], popen, output)
        self.started.append(process)
        return process

    def kill_all(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            if process.popen.poll() is None:
                process.kill()

    @contextmanager
    def running(self, *commands: str, **environ: str) -> Iterator[list[Process]]:
        processes = [self.start(command, **environ) for command in commands]
        try:
            if {"serve", "up"} & set(commands):
                self.wait_until_ready(processes)
            yield processes
        finally:
            for process in processes:
                if process.popen.poll() is None:
                    process.stop()

    def wait_until_ready(self, processes: list[Process]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        last: object = None
        while time.monotonic() < deadline:
            for process in processes:
                if process.popen.poll() is not None:
                    raise AssertionError(f"sherlock {process.command} ended:\n{process.text()}")
            try:
                answer = httpx.get(self.url + self.ready_path, timeout=5, trust_env=False)
                if answer.status_code == 200:
                    return
                last = answer.text
            except httpx.HTTPError as error:
                last = error
            time.sleep(0.1)
        raise AssertionError(f"not ready: {last}\n" + "\n".join(p.text() for p in processes))


def deployment(folder: Path, *, ready_path: str = "/health/ready", **settings: str) -> Deployment:
    """A deployment with a data folder of its own; `settings` are SHERLOCK_* names without the prefix."""
    port = free_port()
    # Coverage would trace the imports of torch for half a minute a process; processes with the encoder that
    # needs no torch run the same lines.
    ours = ("SHERLOCK_", "OTEL_")
    unwanted = ours if settings.get("encoder_model") == "hash" else (*ours, "COVERAGE_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    chosen = {
        "rag_enabled": "true",
        "port": str(port),
        "data_dir": str(folder / "data"),
        "models_dir": str(MODELS),
        **settings,
    }
    environ = clean | {f"SHERLOCK_{name.upper()}": value for name, value in chosen.items()}
    return Deployment(folder, environ, port, ready_path)


async def rows(running: Deployment, sql: str, *arguments: object) -> list[tuple[object, ...]]:
    """What the embedded database of a deployment answers to its owner."""
    async with await open_embedded(Path(running.environ["SHERLOCK_DATA_DIR"])) as postgres:
        connection = await asyncpg.connect(postgres.owner_url)
        try:
            await connection.execute("set search_path = sherlock, public")
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()
