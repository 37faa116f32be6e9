"""`FileStore` in a bucket of MinIO, or of any server that speaks the S3 protocol."""

import asyncio
import contextlib
import io
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, TypeVarTuple

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error

from sherlock.rag.domain.errors import FileStoreUnavailable, NotFound
from sherlock.rag.threads import run_in_thread

_THREADS: Final = 8
_PIECE_BYTES: Final = 1 << 18
_PART_BYTES: Final = 8 << 20
"""Size of the parts of a multipart upload; one is held in memory for each running `put`."""
_CONNECT_TIMEOUT_S: Final = 3.0
_READ_TIMEOUT_S: Final = 20.0
_PROBE: Final = ".probe"  # has no slash, as every key has

T = TypeVar("T")
Args = TypeVarTuple("Args")


class MinioFileStore:
    """Objects named by their key; the server is first asked when it is needed, a missing bucket is made.

    An upload is gathered in a temporary file first: a slow client holds neither a thread nor a connection,
    and one that leaves half way leaves nothing in the bucket.
    """

    def __init__(
        self, endpoint: str, access_key: str, secret_key: str, bucket: str, *, secure: bool = False
    ) -> None:
        self._bucket = bucket
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S),
            retries=urllib3.Retry(total=1, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]),
            maxsize=_THREADS,
        )
        self._client = Minio(
            endpoint, access_key=access_key, secret_key=secret_key, secure=secure, http_client=self._http
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="minio")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)  # waits for calls that are under way
        self._http.clear()

    async def put(self, key: str, data: AsyncIterator[bytes]) -> None:
        with tempfile.SpooledTemporaryFile(max_size=_PART_BYTES) as gathered:
            async for piece in data:
                await self._run(key, gathered.write, piece)
            await self._run(key, self._upload, key, gathered)

    async def size(self, key: str) -> int:
        return (await self._run(key, self._client.stat_object, self._bucket, key)).size or 0

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        size = await self.size(key)
        length = min(size, size if end is None else end) - start
        if length <= 0:
            return
        response = await self._run(key, self._get, key, start, length, undo=_release)
        try:
            while piece := await self._run(key, response.read, _PIECE_BYTES):
                yield piece
        finally:
            _release(response)

    async def delete(self, key: str) -> None:
        with contextlib.suppress(NotFound):
            await self._run(key, self._client.remove_object, self._bucket, key)

    async def keys(self) -> AsyncIterator[str]:
        for key in await self._run("", self._stored):
            yield key

    async def check(self) -> None:
        await self._run("", self._upload, _PROBE, io.BytesIO(b"\n"))

    async def _run(
        self, key: str, work: Callable[[*Args], T], *args: *Args, undo: Callable[[T], None] | None = None
    ) -> T:
        """Blocking work in a thread; its errors become the port's."""
        try:
            return await run_in_thread(self._threads, work, *args, undo=undo)
        except S3Error as error:
            if error.code in ("NoSuchKey", "NoSuchBucket"):
                raise NotFound("File", key.rpartition("/")[2]) from None
            raise FileStoreUnavailable from None
        except (MinioException, urllib3.exceptions.HTTPError, OSError):
            raise FileStoreUnavailable from None

    def _get(self, key: str, start: int, length: int) -> urllib3.BaseHTTPResponse:
        return self._client.get_object(self._bucket, key, offset=start, length=length)

    def _upload(self, key: str, source: Any) -> None:
        """`source` is a binary file that can seek."""
        try:
            self._put_object(key, source)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            self._make_bucket()
            self._put_object(key, source)

    def _put_object(self, key: str, source: Any) -> None:
        length = source.seek(0, io.SEEK_END)
        source.seek(0)
        self._client.put_object(
            self._bucket, key, source, length, part_size=_PART_BYTES, num_parallel_uploads=1
        )

    def _make_bucket(self) -> None:
        try:
            self._client.make_bucket(self._bucket)
        except S3Error as error:
            if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise  # otherwise another process was faster

    def _stored(self) -> list[str]:
        try:
            names = [item.object_name for item in self._client.list_objects(self._bucket, recursive=True)]
        except S3Error as error:
            if error.code == "NoSuchBucket":
                return []
            raise
        return [name for name in names if name and "/" in name]


def _release(response: urllib3.BaseHTTPResponse) -> None:
    response.close()
    response.release_conn()
