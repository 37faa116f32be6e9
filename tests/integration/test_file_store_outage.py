"""The line to the file store is cut and mended: uploads fail clearly, jobs wait, and nothing is lost."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import minio
import pytest
from moto.server import ThreadedMotoServer
from pydantic import SecretStr
from tests.cut_proxy import CutProxy
from tests.serving import Served, settings_for, sherlock

TEXT = b"The shut-off code of the turbine is KX-4471-Q."


@dataclass
class Bench:
    line: CutProxy
    served: Served
    bucket: minio.Minio
    bucket_name: str
    database_url: str

    def http(self) -> httpx.Client:
        return self.served.http()

    def upload(self, content: bytes = TEXT) -> httpx.Response:
        with self.http() as http:
            form = {"purpose": "assistants"}
            return http.post("/v1/files", data=form, files={"file": ("a.txt", content)})

    def get(self, path: str) -> httpx.Response:
        with self.http() as http:
            return http.get(path)

    def stored(self) -> set[str]:
        """Ids of the objects in the bucket, whatever becomes of the line to it."""
        listed = self.bucket.list_objects(self.bucket_name, recursive=True)
        return {str(one.object_name).rpartition("/")[2] for one in listed if "/" in str(one.object_name)}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        async def ask() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.database_url)
            try:
                await connection.execute("set search_path = sherlock, public")
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return asyncio.run(ask())

    def status(self, store: str, file: str) -> str:
        status: str = self.get(f"/v1/vector_stores/{store}/files/{file}").json()["status"]
        return status


@pytest.fixture
def bench(folder: Path, empty_database_url: str) -> Iterator[Bench]:
    bucket = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    bucket.start()
    host, port = bucket.get_host_and_port()
    direct = minio.Minio(f"{host}:{port}", access_key="access", secret_key="secret-key", secure=False)
    with CutProxy((host, port)).running() as line:
        settings = settings_for(
            folder,
            rag_enabled=True,
            postgres_url=SecretStr(empty_database_url),
            file_store="minio",
            minio_endpoint=f"127.0.0.1:{line.port}",
            minio_access_key=SecretStr("access"),
            minio_secret_key=SecretStr("secret-key"),
            minio_bucket=f"bucket-{secrets.token_hex(6)}",
        )
        with sherlock(settings) as served:
            yield Bench(line, served, direct, settings.minio_bucket, empty_database_url)
    bucket.stop()


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


def test_an_outage_costs_time_and_nothing_else(bench: Bench) -> None:
    file = bench.upload().json()["id"]
    bench.line.cut()

    refused = bench.upload()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "storage_unavailable"
    assert bench.get(f"/v1/files/{file}/content").status_code == 503
    assert bench.get("/health").status_code == 200
    ready = bench.get("/health/ready")
    assert (ready.status_code, ready.json()["components"]["file_store"]["state"]) == (503, "unavailable")

    with bench.http() as http:
        store = http.post("/v1/vector_stores", json={"file_ids": [file]}).json()["id"]
    time.sleep(1.5)  # some attempts
    assert bench.status(store, file) == "in_progress"

    bench.line.mend()
    again = bench.upload(TEXT * 2)
    assert again.status_code == 200
    assert bench.get(f"/v1/files/{again.json()['id']}/content").content == TEXT * 2
    until(lambda: bench.status(store, file) != "in_progress")
    assert bench.status(store, file) == "completed"
    assert bench.get("/health/ready").json()["components"]["file_store"]["state"] == "ready"
    listed = [one["id"] for one in bench.get("/v1/files").json()["data"]]
    assert sorted(listed) == sorted([file, again.json()["id"]]), "the refused one left nothing"


def test_what_is_deleted_in_an_outage_goes_after_it(bench: Bench) -> None:
    deleted, kept = (bench.upload().json()["id"] for _ in range(2))
    bench.line.cut()
    with bench.http() as http:
        assert http.delete(f"/v1/files/{deleted}").json()["deleted"] is True
    assert bench.get(f"/v1/files/{deleted}").status_code == 404
    assert bench.upload().status_code == 503
    # What was refused is still reserved; and the housekeeper tries in vain, and will again in a minute.
    until(lambda: bench.rows("select from loose_objects where going and due_at > now()") != [])
    bench.line.mend()
    # The try that was under way may get through.
    assert {kept} <= bench.stored() <= {deleted, kept}
    assert len(bench.rows("select from loose_objects")) in (1, 2)

    bench.rows("update loose_objects set due_at = now()")
    until(lambda: bench.rows("select from loose_objects") == [])
    assert bench.stored() == {kept}
