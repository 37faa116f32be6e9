"""All of Sherlock on real parts: one API and some workers, each dependency behind a network that can fail."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.chaos.background import Background, background
from tests.chaos.bucket import BUCKET, KEY, SECRET, Bucket, bucket_server
from tests.chaos.database import KillableDatabase, killable_database
from tests.chaos.tcp_proxy import TcpProxy, tcp_proxy
from tests.integration.processes import Deployment, Process, deployment
from tests.nats_servers import NatsServer, nats_server

LEASE_S = 2.0


@dataclass(slots=True)
class Plant:
    background: Background
    database: KillableDatabase
    bucket: Bucket
    nats: NatsServer
    networks: dict[str, TcpProxy]
    """By dependency: `postgres`, `s3` and `nats`, which all processes use, and `postgres of worker N`."""
    deployment: Deployment
    api: Process = field(init=False)
    workers: list[Process] = field(default_factory=list)

    def start_api(self) -> None:
        self.api = self.deployment.start("serve")

    def start_worker(self, number: int) -> None:
        """Start worker `number`, in the place of the one before it."""
        port = self.networks[f"postgres of worker {number}"].port
        worker = self.deployment.start("worker", SHERLOCK_POSTGRES_URL=self.database.url_at(port))
        self.workers[number:] = [worker, *self.workers[number + 1 :]]

    def freeze(self, number: int) -> None:
        """Stop a worker, and the process that reads for it, as a paused virtual machine is stopped."""
        for process in self._family(number):
            process.send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        for process in self._family(number):
            process.send_signal(signal.SIGCONT)

    def _family(self, number: int) -> list[psutil.Process]:
        worker = psutil.Process(self.workers[number].popen.pid)
        return [worker, *worker.children(recursive=True)]

    def log(self) -> Iterator[dict[str, Any]]:
        """What all processes that ever ran have said, but for lines that a kill cut off."""
        for process in self.deployment.started:
            for line in process.text().splitlines():
                with suppress(json.JSONDecodeError):
                    yield json.loads(line)


@contextmanager
def plant(folder: Path, *, workers: int, **settings: str) -> Iterator[Plant]:
    """A running plant; `settings` are SHERLOCK_* names without the prefix."""
    with ExitStack() as stack:
        loop = stack.enter_context(background())
        database = stack.enter_context(killable_database(folder / "database", loop))
        bucket = stack.enter_context(bucket_server())
        (folder / "nats").mkdir()
        nats = stack.enter_context(nats_server(folder / "nats"))
        shared: dict[str, int | Path] = {"postgres": database.socket, "s3": bucket.port, "nats": nats.port}
        own: dict[str, int | Path] = {
            f"postgres of worker {number}": database.socket for number in range(workers)
        }
        networks = {
            name: stack.enter_context(tcp_proxy(target, loop)) for name, target in (shared | own).items()
        }
        chosen = {
            "postgres_url": database.url_at(networks["postgres"].port),
            "file_store": "minio",
            "minio_endpoint": f"127.0.0.1:{networks['s3'].port}",
            "minio_access_key": KEY,
            "minio_secret_key": SECRET,
            "minio_bucket": BUCKET,
            "nats_url": nats.url.rpartition(":")[0] + f":{networks['nats'].port}",
            "encoder_model": "hash",
            "reranker_model": "none",
            "llm_base_url": "http://127.0.0.1:9/v1",
            "llm_model": "nobody",
            "job_lease_s": str(LEASE_S),
            "chunk_size_tokens": "100",
            "chunk_overlap_tokens": "10",
            **settings,
        }
        made = deployment(folder, ready_path="/health", **chosen)
        stack.callback(made.kill_all)
        running = Plant(loop, database, bucket, nats, networks, made)
        running.start_api()
        made.wait_until_ready([running.api])
        for number in range(workers):
            running.start_worker(number)
        try:
            yield running
        except BaseException:
            # The folder goes with the test.
            print(*(entry for entry in running.log() if entry["level"] == "error"), sep="\n")
            raise
