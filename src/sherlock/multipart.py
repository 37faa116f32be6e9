"""An uploaded file read off the wire as it comes: bounded memory, no temporary file, fields in any order.

The python client sends the file last, the node client first and without a length, so the bytes are handed on
while what stands behind them (the purpose, say) is not known yet.
"""

import re
from collections import deque
from collections.abc import AsyncIterator, Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sherlock.rag.domain.errors import InvalidRequest

MAX_FIELD_BYTES = 4096
MAX_FIELDS = 32

ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}
"""How names are escaped in multipart headers (WHATWG HTML, "multipart/form-data encoding algorithm")."""
ESCAPED = re.compile("|".join(ESCAPES), re.IGNORECASE)


class Upload:
    """One multipart body with one file in it. Use: `await begin()`, exhaust `data()`, `await finish()`.

    All three raise `InvalidRequest` for a body that is not what its type says, or that breaks a bound.
    """

    def __init__(self, body: AsyncIterator[bytes], content_type: str | None, *, file_field: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequest("The body must be multipart/form-data with a boundary.")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """Known after `begin`; `None` before."""
        self._body = body
        self._file_field = file_field
        self._pieces: deque[bytes] = deque()
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._field = bytearray()
        self._field_name = ""
        self._in_file = False
        self._file_ended = False
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:  # its own limit is 256 bytes
            raise InvalidRequest("The boundary of the multipart body is too long.") from None

    async def begin(self) -> str:
        """Read up to the file and return its name. Fields that stand before it are in `fields`."""
        while self.filename is None and await self._advance():
            pass
        if self.filename is None:
            raise InvalidRequest(
                f"Missing required parameter: '{self._file_field}'.",
                param=self._file_field,
                code="missing_required_parameter",
            )
        return self.filename

    async def data(self) -> AsyncIterator[bytes]:
        """The file's bytes, once."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._file_ended:
                return
            await self._advance()

    async def finish(self) -> Mapping[str, str]:
        """Read what stands behind the file and return all fields."""
        while await self._advance():
            pass
        return self.fields

    async def _advance(self) -> bool:
        """Parse the next piece of the body; false at its end."""
        if self._ended:
            return False
        try:
            async for piece in self._body:
                if piece:
                    self._parser.write(piece)
                    return True
        except FormParserError:
            raise InvalidRequest("The multipart body is malformed.") from None
        raise InvalidRequest("The multipart body ends before its last boundary.")

    # ── callbacks of the parser ─────────────────────────────────────────────

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._field.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = decoded(options.get(b"name", b""))
        if not name:
            raise InvalidRequest("A part of the form has no name.")
        self._in_file = name == self._file_field
        if self._in_file:
            if self.filename is not None:
                raise InvalidRequest("Only one file can be uploaded at a time.", param=name)
            self.filename = file_name(options.get(b"filename", b""))
        elif name in self.fields or len(self.fields) >= MAX_FIELDS:
            raise InvalidRequest("The form has too many fields, or one of them twice.")
        self._field_name = name

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pieces.append(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise InvalidRequest("A form field is too long.")

    def _on_part_end(self) -> None:
        if self._in_file:
            self._file_ended = True
        else:
            self.fields[self._field_name] = decoded(bytes(self._field))
        self._in_file = False

    def _on_end(self) -> None:
        self._ended = True


def decoded(raw: bytes) -> str:
    """Form text is UTF-8; what is not is kept recognisable."""
    return raw.decode("utf-8", "replace")


def file_name(raw: bytes) -> str:
    """The name as the client meant it: UTF-8, with the escapes undone."""
    return ESCAPED.sub(lambda escape: ESCAPES[escape[0].upper()], decoded(raw))
