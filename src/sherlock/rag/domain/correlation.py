"""What ties together all that is done for one request: in logs, traces and the jobs it leaves behind."""

from contextvars import ContextVar
from dataclasses import dataclass

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being served, or that a running job came from; child tasks inherit it."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Where a piece of work came from; all of it unknown where nobody asked for it."""

    request_id: str | None = None
    traceparent: str | None = None
    """The span that asked for it, as W3C Trace Context writes it (55 characters in version 00)."""


UNKNOWN = Correlation()
