"""The official clients: how each runs the checklist, and what came of it."""

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.python.rows import ROW_HEADER
from tests.conformance.recording import Exchange, recording

ROOT = Path(__file__).parents[2]
LONGEST_RUN_S = 120.0


@dataclass(frozen=True)
class Client:
    name: str
    command: tuple[str, ...]
    """Runs the checklist against the base URL that is appended."""


def node() -> str:
    """The one on the PATH if it is new enough, else the one from the package index (see the Makefile)."""
    found = shutil.which("node")
    new_enough = "process.exit(parseInt(process.versions.node) < 22)"
    if found and subprocess.run([found, "-e", new_enough], capture_output=True).returncode == 0:
        return found
    return str(ROOT / ".venv-node/bin/node")


PYTHON_CHECKLIST = ("-m", "tests.clients.checklist")
CLIENTS = (
    Client("python", (sys.executable, *PYTHON_CHECKLIST)),
    Client("python-1.99.9", (str(ROOT / ".venv-clients/bin/python"), *PYTHON_CHECKLIST)),
    Client("node", (node(), "tests/clients/checklist.mjs")),
)
FRAMEWORKS = Client(
    "frameworks", (str(ROOT / ".venv-frameworks/bin/python"), "-m", "tests.clients.frameworks")
)


@dataclass(frozen=True)
class Run:
    version: str
    """Language and version, as the client tells them."""
    failures: dict[str, str | None]
    """Key of a row -> what went wrong, `None`: nothing. In the order they were run."""
    exchanges: list[Exchange]
    stderr: str

    def of_row(self, key: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.request.headers.get(ROW_HEADER) == key]


async def run(client: Client, server_port: int) -> Run:
    """Raises `RuntimeError` when the client is not installed or breaks off."""
    async with recording(server_port) as (port, recorder):
        try:
            process = await asyncio.create_subprocess_exec(
                *client.command,
                f"http://127.0.0.1:{port}/v1",
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError:
            raise RuntimeError(f"{client.command[0]} is missing: run `make clients`") from None
        try:
            out, err = await asyncio.wait_for(process.communicate(), LONGEST_RUN_S)
        except TimeoutError:
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"{client.name} broke off:\n{out.decode()[-500:]}\n{err.decode()[-2000:]}")
    told, *rows = [json.loads(line) for line in out.splitlines()]
    failures = {row["row"]: None if row["ok"] else row["detail"] for row in rows}
    return Run(told["client"], failures, recorder.exchanges(), err.decode())
