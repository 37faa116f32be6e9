"""A PostgreSQL server that is killed and started again."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
from tests.chaos.background import Background

from sherlock.embedded import EmbeddedPostgres, open_embedded

END_TIMEOUT_S = 60.0


class KillableDatabase:
    """The embedded PostgreSQL as a server of one's own: Sherlock has its address and cannot start it."""

    def __init__(self, folder: Path, background: Background) -> None:
        self._folder = folder
        self._background = background
        self._server: EmbeddedPostgres | None = None
        self._reading: asyncpg.Connection[asyncpg.Record] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def owner_url(self) -> str:
        assert self._server is not None, "the database is down"
        return self._server.owner_url

    @property
    def socket(self) -> Path:
        query = parse_qs(urlsplit(self.owner_url).query)
        return Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}"

    def url_at(self, port: int) -> str:
        """The owner's address on a port of this machine, where something forwards to the socket."""
        return self.owner_url.partition("@")[0] + f"@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        self._server = self._background.run(open_embedded(self._folder), END_TIMEOUT_S * 2)

    def kill(self) -> None:
        """As `kill -9` of the server would: what is not on the disk is lost."""
        self._end(signal.SIGKILL)

    def restart_at_once(self) -> None:
        """An immediate shutdown, which recovers from the log as after a crash, and a start."""
        self._end(signal.SIGQUIT)
        self.start()

    def kill_a_backend(self, dice: random.Random) -> None:
        """`kill -9` of one connection's process: the server ends all of them and recovers by itself."""
        pids = self.rows("select pid from pg_stat_activity where application_name = 'sherlock' order by pid")
        if pids:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(pids)[0], signal.SIGKILL)

    def close(self) -> None:
        self._forget_connection()
        if self._server is not None:
            self._background.run(self._server.close())
            self._server = None

    def rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._background.run(self._rows(sql, arguments))

    def _end(self, how: signal.Signals) -> None:
        self._forget_connection()
        pid_file = self._folder / "postgres" / "cluster" / "postmaster.pid"
        postmaster = int(pid_file.read_text().splitlines()[0])
        os.kill(postmaster, how)
        deadline = time.monotonic() + END_TIMEOUT_S
        assert self._server is not None
        self._background.run(self._server.close())
        self._server = None
        while psutil.pid_exists(postmaster):
            assert time.monotonic() < deadline, "the database server does not end"
            time.sleep(0.01)

    def _forget_connection(self) -> None:
        if self._reading is not None:
            self._background.loop.call_soon_threadsafe(self._reading.terminate)
            self._reading = None

    async def _rows(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        deadline = time.monotonic() + END_TIMEOUT_S
        while True:
            try:
                async with self._one_at_a_time:
                    return await self._fetch(sql, arguments)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError):
                # Recovering from a backend's end.
                assert time.monotonic() < deadline, "the database does not answer"
                self._reading = None
                await asyncio.sleep(0.02)

    async def _fetch(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if self._reading is None or self._reading.is_closed():
            self._reading = await asyncpg.connect(
                self.owner_url,
                server_settings={"search_path": "sherlock,public", "application_name": "observer"},
            )
        return [tuple(row) for row in await self._reading.fetch(sql, *arguments)]


@contextmanager
def killable_database(folder: Path, background: Background) -> Iterator[KillableDatabase]:
    database = KillableDatabase(folder, background)
    database.start()
    try:
        yield database
    finally:
        database.close()
