"""An S3 server that can be full."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import minio
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import make_server

KEY, SECRET, BUCKET = "AKIASHERLOCK", "elementary-my-dear", "papers"

_FULL = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>XMinioStorageFull</Code>'
    b"<Message>Storage backend has reached its minimum free drive threshold.</Message></Error>"
)


class _Quiet(MotoRequestHandler):
    def log_request(self, *what: object) -> None:
        pass


class Bucket:
    def __init__(self) -> None:
        self.full = False
        """Whether every write is refused, in the way MinIO refuses it."""
        self._moto = DomainDispatcherApplication(create_backend_app)  # type: ignore[no-untyped-call]
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)

    @property
    def port(self) -> int:
        return self.server.server_port

    def objects(self) -> dict[str, int]:
        """Size by name."""
        listed = self._client().list_objects(BUCKET, recursive=True)
        return {str(item.object_name): item.size or 0 for item in listed}

    def content(self, name: str) -> bytes:
        answer = self._client().get_object(BUCKET, name)
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()

    def _client(self) -> minio.Minio:
        return minio.Minio(f"127.0.0.1:{self.port}", access_key=KEY, secret_key=SECRET, secure=False)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.full and environ["REQUEST_METHOD"] in ("PUT", "POST"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("507 Insufficient Storage", [("Content-Type", "application/xml")])
            return [_FULL]
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer


@contextmanager
def bucket_server() -> Iterator[Bucket]:
    bucket = Bucket()
    serving = threading.Thread(target=bucket.server.serve_forever, name="bucket")
    serving.start()
    try:
        yield bucket
    finally:
        bucket.server.shutdown()
        serving.join()
        bucket.server.server_close()
