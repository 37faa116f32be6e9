"""Servers of one's own by settings alone: PostgreSQL at an address, files in a bucket."""

from collections.abc import Iterator
from pathlib import Path

import asyncpg
import minio
import pytest
from moto.server import ThreadedMotoServer
from tests.integration.processes import Deployment, deployment, free_port

from sherlock.embedded import EmbeddedPostgres

KEY, SECRET = "AKIASHERLOCK", "elementary-my-dear"


@pytest.fixture
def bucket_server() -> Iterator[str]:
    """`host:port` of an S3 server that has no bucket yet."""
    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def with_servers(folder: Path, empty_database_url: str, bucket_server: str) -> Iterator[Deployment]:
    made = deployment(
        folder,
        ready_path="/health",
        postgres_url=empty_database_url,
        file_store="minio",
        minio_endpoint=bucket_server,
        minio_access_key=KEY,
        minio_secret_key=SECRET,
        minio_bucket="papers",
        encoder_model="hash",
        reranker_model="none",
        llm_base_url="http://127.0.0.1:9/v1",
        llm_model="nobody",
    )
    yield made
    made.kill_all()


async def test_the_flow_on_real_servers(
    with_servers: Deployment, empty_database_url: str, bucket_server: str, embedded: EmbeddedPostgres
) -> None:
    with with_servers.running("serve", "worker"):
        client = with_servers.client()
        store = client.vector_stores.create(name="plant")
        member = client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("turbine.txt", b"The shut-off code is KX-4471-Q."),
            poll_interval_ms=50,
        )  # fmt: skip
        assert member.status == "completed"
        assert client.vector_stores.search(store.id, query="shut-off code").data[0].filename == "turbine.txt"
        assert client.files.content(member.id).content == b"The shut-off code is KX-4471-Q."

        bucket = minio.Minio(bucket_server, access_key=KEY, secret_key=SECRET, secure=False)
        assert [item.object_name for item in bucket.list_objects("papers", recursive=True)] == [
            f"default/{member.id}"
        ]

        owner = await asyncpg.connect(empty_database_url)
        try:
            users = await owner.fetch(
                "select distinct usename, usesuper from pg_stat_activity join pg_user using (usename) "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            owned = await owner.fetchval(
                "select count(*) from pg_class where relowner = 'sherlock_app'::regrole"
            )
        finally:
            await owner.close()
        assert [tuple(user) for user in users] == [("sherlock_app", False)]
        assert owned == 0

        client.files.delete(member.id)
        assert list(bucket.list_objects("papers", recursive=True)) == []
    assert not (folder_of(with_servers) / "postgres").exists(), "no embedded database was started"


def folder_of(running: Deployment) -> Path:
    return Path(running.environ["SHERLOCK_DATA_DIR"])
