"""Every error Sherlock raises on purpose.

    SherlockError
    ├── RequestError                  the caller can mend it; never retried
    │   ├── InvalidRequest
    │   │   ├── UnsupportedFileType
    │   │   ├── FileTooLarge
    │   │   ├── UploadNotPending
    │   │   └── VectorStoreExpired
    │   ├── NotFound
    │   │   └── ModelNotFound
    │   ├── Conflict
    │   └── UpstreamRejected
    ├── RagDisabled                   the feature is switched off
    ├── ChatModelNotConfigured
    ├── Unavailable                   a part Sherlock needs does not answer; transient
    │   ├── DatabaseUnavailable
    │   ├── QueueFull
    │   ├── FileStoreUnavailable
    │   ├── ReservationLost
    │   ├── EmbedderUnavailable
    │   ├── RerankerUnavailable
    │   ├── MessagingUnavailable
    │   └── ChatModelUnavailable
    │       ├── ChatModelRateLimited
    │       └── ChatModelMisconfigured    the exception: repeating cannot help
    ├── IngestError                   this document cannot be ingested; permanent
    │   ├── UnsupportedFile
    │   └── InvalidFile
    └── LeaseLost                     another worker owns the job, or its file is gone

A message is a plain sentence for the caller: no SQL, no path, no document text, no key.
"""

from typing import ClassVar, Literal

ECHOED_CHARS = 64
"""How much of what a caller sent a message repeats."""

IngestErrorCode = Literal["server_error", "unsupported_file", "invalid_file"]


def abridged(given: str) -> str:
    """The beginning of a caller's own text."""
    return given if len(given) <= ECHOED_CHARS else f"{given[:ECHOED_CHARS]}…"


class SherlockError(Exception):
    """Base of all; `message` may be shown to the caller as it stands."""

    transient: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(SherlockError):
    """The request is wrong; `param` names the field, `code` is OpenAI's error code where it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class InvalidRequest(RequestError):
    """A value is missing, of the wrong type or out of bounds."""


class UnsupportedFileType(InvalidRequest):
    """Neither the name nor the first bytes of the file are of a kind that can be read."""

    def __init__(self, filename: str) -> None:
        extension = filename.rpartition(".")[2].lower() if "." in filename else ""
        kind = f"'.{extension[:16]}'" if extension.isalnum() else "without a known extension"
        super().__init__(
            f"Files of type {kind} are not supported.", param="file", code="unsupported_file_type"
        )


class FileTooLarge(InvalidRequest):
    """The upload is longer than the server accepts; it was refused while streaming."""

    def __init__(self, max_bytes: int, *, param: str = "file") -> None:
        super().__init__(
            f"File is too large. Maximum size is {max_bytes} bytes.", param=param, code="file_too_large"
        )


class UploadNotPending(InvalidRequest):
    """The upload has ended; `how` says in which way."""

    def __init__(self, how: Literal["completed", "cancelled", "expired"]) -> None:
        said = {"completed": "is completed", "cancelled": "was cancelled", "expired": "has expired"}[how]
        super().__init__(f"The upload {said}.", param="upload_id", code=f"upload_{how}")


class VectorStoreExpired(InvalidRequest):
    """What was in the store has been removed; nothing can be put into it or found in it any more."""

    def __init__(self, vector_store_id: str, *, param: str = "vector_store_id") -> None:
        super().__init__(
            f"The vector store '{abridged(vector_store_id)}' has expired.",
            param=param,
            code="vector_store_expired",
        )


class NotFound(RequestError):
    """No such object in the caller's workspace: unknown, foreign and malformed ids look the same."""

    def __init__(self, kind: str, object_id: str, *, param: str | None = "id") -> None:
        super().__init__(f"No such {kind} object: {abridged(object_id)}", param=param)


class ModelNotFound(NotFound):
    """The model is not one this server runs or forwards to."""

    def __init__(self, model: str) -> None:
        RequestError.__init__(
            self,
            f"The model '{abridged(model)}' does not exist or you do not have access to it.",
            param="model",
            code="model_not_found",
        )


class Conflict(RequestError):
    """The request contradicts what is stored; repeating it cannot help."""


class UpstreamRejected(RequestError):
    """The language model server refused the request (its 4xx); the message is its own."""


class RagDisabled(SherlockError):
    """The route needs retrieval and retrieval is off."""

    def __init__(self) -> None:
        super().__init__("RAG is not enabled — set SHERLOCK_RAG_ENABLED=true")


class ChatModelNotConfigured(SherlockError):
    """There is no language model to ask."""

    def __init__(self) -> None:
        super().__init__("No language model is configured. Set SHERLOCK_LLM_BASE_URL and SHERLOCK_LLM_MODEL.")


class Unavailable(SherlockError):
    """A part is down or slow; the same request may succeed later."""

    transient = True


class DatabaseUnavailable(Unavailable):
    """PostgreSQL does not answer, or ended the connection."""

    def __init__(self, message: str = "The database is unavailable.") -> None:
        super().__init__(message)


class QueueFull(Unavailable):
    """More jobs wait than the server takes on; the caller is asked to come back after `retry_after_s`."""

    def __init__(
        self, message: str = "Too many files wait to be ingested.", *, retry_after_s: float = 10.0
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FileStoreUnavailable(Unavailable):
    """The bucket or folder that holds the files cannot be used now."""

    def __init__(self, message: str = "Storage unavailable") -> None:
        super().__init__(message)


class ReservationLost(Unavailable):
    """What was stored took so long that it was taken for left over, and is being removed."""

    def __init__(
        self, message: str = "The upload was held up for too long and has been given up; send it again."
    ) -> None:
        super().__init__(message)


class EmbedderUnavailable(Unavailable):
    """The encoder is not loaded or failed."""


class RerankerUnavailable(Unavailable):
    """The cross-encoder is not loaded or failed."""


class MessagingUnavailable(Unavailable):
    """The message server cannot be reached, or refuses what we need of it."""


class ChatModelUnavailable(Unavailable):
    """The language model does not answer, refuses our key, or broke off."""


class ChatModelRateLimited(ChatModelUnavailable):
    """The language model server asks us to wait; `retry_after_s` when it said how long."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ChatModelMisconfigured(ChatModelUnavailable):
    """The language model server refuses our key, or is not what we were told it is: not transient."""

    transient = False


class IngestError(SherlockError):
    """The file ends `failed` with this code and message as its `last_error`."""

    code: ClassVar[IngestErrorCode] = "server_error"


class UnsupportedFile(IngestError):
    """No parser reads this kind of file."""

    code = "unsupported_file"


class InvalidFile(IngestError):
    """Corrupt, encrypted, empty, or without any text."""

    code = "invalid_file"


class LeaseLost(SherlockError):
    """The job is no longer this worker's: its lease ran out, or its file was deleted or cancelled."""

    def __init__(self, message: str = "The ingest job is no longer held by this worker.") -> None:
        super().__init__(message)
