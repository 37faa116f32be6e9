"""Messages: eml by the standard library, msg (Outlook) from its streams. Attachments are named, not read."""

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from email.policy import EmailPolicy
from pathlib import Path
from typing import Any, Final, cast

import olefile

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import html, text

_HEADERS: Final = ("Subject", "From", "To", "Cc", "Date")
_LONGEST_HEADER: Final = 4_000  # characters
_MOST_PARTS: Final = 2_000
_DEEPEST: Final = 5  # messages forwarded within each other
_LONGEST_STREAM: Final = 16 << 20  # bytes of one text of an Outlook message
_DAMAGED: Final = "The message is damaged and cannot be read."


class _Bounded(EmailPolicy):
    """The standard library takes the square of a header's length, 97 s for 700 kB, and minutes for a message
    of 200,000 parts."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        return super().header_fetch_parse(name, value[:_LONGEST_HEADER])


def parse_eml(path: Path) -> Iterator[Section]:
    """Headers, body, names of attachments, forwarded messages; the subject is the heading."""
    try:
        with path.open("rb") as file:
            parser = BytesParser(policy=_Bounded(message_factory=_counted()))
            message = cast("EmailMessage", parser.parse(file))
        sections = [*_message(message, 0)]
    except (MemoryError, OSError, InvalidFile):
        raise
    except Exception:  # the parser trusts what headers say, and raises nearly any
        raise InvalidFile(_DAMAGED) from None
    yield from sections


def _counted() -> Callable[..., EmailMessage]:
    """Makes the parts of one message. Raises `InvalidFile` when they are too many."""
    left = _MOST_PARTS

    def part(policy: EmailPolicy) -> EmailMessage:
        nonlocal left
        left -= 1
        if left < 0:
            raise InvalidFile(f"The message has more than the {_MOST_PARTS} parts that are read.")
        return EmailMessage(policy)

    return part


def _message(message: EmailMessage, depth: int) -> Iterator[Section]:
    subject = " ".join(str(message["Subject"] or "").split())
    lines = [f"{name}: {_one_line(str(message[name]))}\n" for name in _HEADERS if message[name]]
    yield from text.gather([*lines, "\n"], subject or None)
    body = message.get_body(("plain", "html"))
    if body is not None:
        content, encoding = _content(body)
        yield Section("", encoding=encoding)
        yield from _body(content, subject, is_html=body.get_content_subtype() == "html")
    elif message.get_content_maintype() == "multipart" and not message.is_multipart():
        yield from _body(_content(message)[0], subject, is_html=False)  # its boundary is missing
    forwarded: list[EmailMessage] = []
    names: list[str] = []
    for part in message.iter_attachments() if message.is_multipart() else ():
        if part.get_content_type() == "message/rfc822" and depth < _DEEPEST:
            forwarded += [inner for inner in part.iter_parts() if isinstance(inner, EmailMessage)]
        elif name := part.get_filename():
            names.append(f"Attachment: {_one_line(name)}\n")
    yield from text.gather([*names, "\n"] if names else [], subject or None)
    for inner in forwarded:
        yield from _message(inner, depth + 1)


def _content(part: MIMEPart) -> tuple[str, str | None]:
    """The text of a part and its encoding; a wrong declaration gives way to detection."""
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return "", None
    return text.decode_declared(content, part.get_content_charset())


def _body(content: str, subject: str, *, is_html: bool) -> Iterator[Section]:
    sections = html.parse_text([content]) if is_html else [Section(content.replace("\r\n", "\n"))]
    yield from text.gather((section.text + "\n\n" for section in sections), subject or None)


def _one_line(value: str) -> str:
    return " ".join(value.split())


# ── Outlook ─────────────────────────────────────────────────────────────────

# Property ids (MS-OXPROPS); the name of a stream adds the type: 001F is UTF-16, 001E a code page, 0102 bytes.
_SUBJECT, _SENDER, _SENDER_ADDRESS, _TO, _CC = "0037", "0C1A", "0C1F", "0E04", "0E03"
_BODY, _HTML, _FILE_NAME, _SHORT_NAME = "1000", "1013", "3707", "3704"
_SENT, _RECEIVED = 0x00390040, 0x0E060040
_PROPERTIES: Final = "__properties_version1.0"
_PROPERTIES_HEADER: Final = 32  # bytes


def parse_msg(path: Path) -> Iterator[Section]:
    """As `parse_eml`."""
    try:
        with olefile.OleFileIO(path) as container:
            sections = [*_outlook(container)]
    except (MemoryError, InvalidFile):
        raise
    except Exception:  # olefile raises nearly any, for it trusts what it reads
        raise InvalidFile(_DAMAGED) from None
    yield from sections


def _outlook(container: olefile.OleFileIO) -> Iterator[Section]:
    subject = _one_line(_text(container, _SUBJECT))
    sender = " ".join(filter(None, (_text(container, _SENDER), _text(container, _SENDER_ADDRESS))))
    values = (subject, sender, _text(container, _TO), _text(container, _CC), _date(container))
    lines = [f"{name}: {_one_line(value)}\n" for name, value in zip(_HEADERS, values, strict=True) if value]
    yield from text.gather([*lines, "\n"], subject or None)
    if body := _text(container, _BODY):
        yield from _body(body, subject, is_html=False)
    elif body := _text(container, _HTML):
        yield from _body(body, subject, is_html=True)
    folders = sorted({entry[0] for entry in container.listdir() if entry[0].startswith("__attach")})
    names = (_text(container, _FILE_NAME, at) or _text(container, _SHORT_NAME, at) for at in folders)
    yield from text.gather((f"Attachment: {_one_line(name)}\n" for name in names if name), subject or None)


def _text(container: olefile.OleFileIO, identifier: str, folder: str = "") -> str:
    for kind in ("001F", "001E", "0102"):
        stream = [*([folder] if folder else []), f"__substg1.0_{identifier}{kind}"]
        if container.exists(stream):
            content = container.openstream(stream).read(_LONGEST_STREAM)
            return content.decode("utf-16-le", "replace") if kind == "001F" else text.decode(content)
    return ""


def _date(container: olefile.OleFileIO) -> str:
    """When it was sent, or else received, in UTC; times count 100 ns from 1601."""
    if not container.exists(_PROPERTIES):
        return ""
    entries = container.openstream(_PROPERTIES).read(_LONGEST_STREAM)[_PROPERTIES_HEADER:]
    entries = entries[: len(entries) // 16 * 16]
    times = {tag: value for tag, _, value in struct.iter_unpack("<IIQ", entries) if tag in (_SENT, _RECEIVED)}
    if ticks := times.get(_SENT, times.get(_RECEIVED)):
        return f"{datetime(1601, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10):%Y-%m-%d %H:%M UTC}"
    return ""
