"""Between nats-py's words and ours."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NoReturn

import nats.errors
from nats.aio.msg import Msg

from sherlock.rag.domain.errors import MessagingUnavailable
from sherlock.rag.domain.messages import Message

UNREACHABLE = "The message server does not answer."


def message_of(msg: Msg) -> Message:
    headers: Mapping[str, str] = msg.headers or {}
    return Message(msg.subject, msg.data, dict(headers), msg.reply or None)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the connection become `MessagingUnavailable`; so does a message the server would not take."""
    try:
        yield
    except nats.errors.MaxPayloadError as error:
        raise_unavailable("The message is larger than the message server allows.", error)
    except nats.errors.BadSubjectError as error:
        raise_unavailable("That is no subject a message can be sent to.", error)
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise_unavailable(UNREACHABLE, error)


def raise_unavailable(told: str, error: Exception) -> NoReturn:
    raise MessagingUnavailable(told) from error
