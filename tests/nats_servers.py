"""Real NATS servers: processes on free ports, with JetStream in a folder that outlives them."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.processes import free_port

START_TIMEOUT_S = 20.0
MAX_PAYLOAD = 65_536
PASSWORD = "a-nats-password"


@dataclass
class NatsServer:
    folder: Path
    jetstream: bool = True
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"nats://sherlock:{PASSWORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        settings: dict[str, object] = {
            "listen": f"127.0.0.1:{self.port}",
            "max_payload": MAX_PAYLOAD,
            "authorization": {"user": "sherlock", "password": PASSWORD},
        }
        if self.jetstream:
            settings["jetstream"] = {"store_dir": str(self.folder)}
        file = self.folder / "nats.conf"
        file.write_text(json.dumps(settings))
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("nats-server")), "--config", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, "the NATS server ended"
            assert time.monotonic() < deadline, "the NATS server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """As `kill -9` would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def nats_server(folder: Path, *, jetstream: bool = True, started: bool = True) -> Iterator[NatsServer]:
    server = NatsServer(folder, jetstream)
    if started:
        server.start()
    try:
        yield server
    finally:
        server.kill()
