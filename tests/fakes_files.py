"""`FileStore` in memory; passes the port's behaviour suite in `tests/ports/test_file_store.py`."""

from collections.abc import AsyncIterator

from sherlock.rag.domain.errors import FileStoreUnavailable, NotFound

_PIECE_BYTES = 1 << 16


class InMemoryFileStore:
    """`down = True` makes every call fail as a store does that cannot be reached."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.down = False

    async def put(self, key: str, data: AsyncIterator[bytes]) -> None:
        self._reach()
        blob = b"".join([piece async for piece in data])
        self._reach()
        self.blobs[key] = blob

    async def size(self, key: str) -> int:
        return len(self._blob(key))

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        blob = self._blob(key)[start:end]
        for at in range(0, len(blob), _PIECE_BYTES):
            yield blob[at : at + _PIECE_BYTES]

    async def delete(self, key: str) -> None:
        self._reach()
        self.blobs.pop(key, None)

    async def keys(self) -> AsyncIterator[str]:
        self._reach()
        for key in [*self.blobs]:
            yield key

    async def check(self) -> None:
        self._reach()

    def _blob(self, key: str) -> bytes:
        self._reach()
        if key not in self.blobs:
            raise NotFound("File", key.rpartition("/")[2])
        return self.blobs[key]

    def _reach(self) -> None:
        if self.down:
            raise FileStoreUnavailable
