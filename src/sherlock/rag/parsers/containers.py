"""What is inside a zip archive or an OLE container, as office documents, e-books and messages are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import olefile

from sherlock.rag.domain.errors import InvalidFile, UnsupportedFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import epub, mail, office, opendocument, sheets, slides
from sherlock.rag.parsers.package import FOREIGN, unzipped

Parser = Callable[[Path], Iterator[Section]]

_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_BY_FOLDER: Final[dict[str, Parser]] = {
    "word": office.parse_docx,
    "ppt": slides.parse_pptx,
    "xl": sheets.parse_xlsx,
}
BY_EXTENSION: Final[dict[str, Parser]] = {
    ".docx": office.parse_docx,
    ".docm": office.parse_docx,
    ".pptx": slides.parse_pptx,
    ".pptm": slides.parse_pptx,
    ".ppsx": slides.parse_pptx,
    ".xlsx": sheets.parse_xlsx,
    ".xlsm": sheets.parse_xlsx,
    ".xlsb": sheets.parse_binary,
    ".xls": sheets.parse_binary,
    ".odt": opendocument.parse,
    ".ods": opendocument.parse,
    ".odp": opendocument.parse,
    ".epub": epub.parse,
    ".msg": mail.parse_msg,
}
_ENCRYPTED_STREAM: Final = "EncryptedPackage".encode("utf-16-le")
_ENCRYPTED: Final = "The document is encrypted and cannot be opened without its password."


def is_container(head: bytes) -> bool:
    return head.startswith((*_ZIP, _OLE))


def is_known(head: bytes) -> bool:
    """Whether the first bytes of a container already tell that it is a document."""
    return head.startswith(_ZIP) and any(
        sign in head
        for sign in (b"word/", b"ppt/", b"xl/", b"mimetypeapplication/vnd.oasis", b"mimetypeapplication/epub")
    )


def parser_of(path: Path, extension: str) -> Parser:
    """The parser for a container, by what is inside. Raises `UnsupportedFile` or `InvalidFile`."""
    with path.open("rb") as file:
        ole = file.read(len(_OLE)) == _OLE
    return _of_ole(path, extension) if ole else _of_zip(path, extension)


def _of_zip(path: Path, extension: str) -> Parser:
    try:
        with unzipped(path) as package:
            kind = b"".join(package.pieces("mimetype"))[:100] if "mimetype" in package.names else b""
            if kind.startswith(b"application/vnd.oasis.opendocument."):
                return opendocument.parse
            if "META-INF/container.xml" in package.names:
                return epub.parse
            if main := package.main:
                if main.endswith(".bin"):
                    return sheets.parse_binary
                if parser := _BY_FOLDER.get(main.partition("/")[0]):
                    return parser
    except FOREIGN:
        if extension in BY_EXTENSION:
            raise InvalidFile("The document is damaged and cannot be opened.") from None
    if extension in BY_EXTENSION:
        raise UnsupportedFile(f"The file is a zip archive, but not a {extension[1:].upper()} document.")
    raise UnsupportedFile("Archives are not unpacked: upload the files that are inside.")


def _of_ole(path: Path, extension: str) -> Parser:
    try:
        with olefile.OleFileIO(path) as container:
            streams = {"/".join(name).casefold() for name in container.listdir()}
    except Exception:  # olefile raises nearly any, for it trusts what it reads
        streams = set()
    if "encryptedpackage" in streams or _ENCRYPTED_STREAM in path.read_bytes():
        raise InvalidFile(_ENCRYPTED)
    if streams & {"workbook", "book"}:
        return sheets.parse_binary
    if "__properties_version1.0" in streams:
        return mail.parse_msg
    if not streams and extension in BY_EXTENSION:
        raise InvalidFile("The document is damaged and cannot be opened.")
    raise UnsupportedFile("Documents in the old binary Office format are not supported.")
