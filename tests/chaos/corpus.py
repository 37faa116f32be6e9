"""Files of many kinds and sizes, some of them broken, made from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests import documents

_LETTERS = "abcdefghijklmnoprstuvw"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    content: bytes
    status: str = "completed"
    """How its ingest has to end."""


def prose(dice: random.Random, paragraphs: int, words: int = 60) -> list[str]:
    known = ["".join(dice.choices(_LETTERS, k=dice.randint(3, 9))) for _ in range(900)]
    return [f"Paragraph {at}. {' '.join(dice.choices(known, k=words))}." for at in range(paragraphs)]


def sound(dice: random.Random, kind: int, paragraphs: int) -> Document:
    """One of ten kinds of document, with so many paragraphs of made-up prose."""
    text = prose(dice, paragraphs)
    joined = "\n\n".join(text)
    match kind % 10:
        case 0 | 1:
            return Document("notes.txt", joined.encode())
        case 2:
            return Document(
                "guide.md", "\n\n".join(f"# Part {at}\n\n{p}" for at, p in enumerate(text)).encode()
            )
        case 3:
            body = "".join(f"<h2>Part {at}</h2><p>{words}</p>" for at, words in enumerate(text))
            return Document("page.html", f"<html><body>{body}</body></html>".encode())
        case 4:
            rows = "".join(f"{at},{words}\n" for at, words in enumerate(text))
            return Document("table.csv", f"number,text\n{rows}".encode())
        case 5:
            body = "".join(f"<w:p><w:r><w:t>{words}</w:t></w:r></w:p>" for words in text)
            return Document("letter.docx", documents.docx(body))
        case 6:
            pages = [tuple(p[at : at + 80] for at in range(0, len(p), 80)) for p in text]
            return Document("report.pdf", documents.pdf(*pages))
        case 7:
            return Document("slides.pptx", documents.pptx(*((documents.shape(p), "") for p in text)))
        case 8:
            functions = "".join(f"def f{at}():\n    return '{p}'\n\n\n" for at, p in enumerate(text))
            return Document("code.py", functions.encode())
        case _:
            return Document(
                "book.epub", documents.epub(*(f"<html><body><p>{p}</p></body></html>" for p in text))
            )


def broken(dice: random.Random, kind: int) -> Document:
    """A file whose ingest has to fail: cut off, without text, or not what it says."""
    whole = sound(dice, (5, 6, 7)[kind % 3], 3)
    match kind % 5:
        case 0 | 1 | 2:
            return Document(whole.name, whole.content[: len(whole.content) // 2], "failed")
        case 3:
            return Document("blank.txt", b" \n" * dice.randint(1, 50), "failed")
        case _:
            return Document("noise.docx", b"PK\x03\x04" + dice.randbytes(500), "failed")


def corpus(dice: random.Random, *, large_paragraphs: int) -> Sequence[Document]:
    """Something of everything: ten small ones, four of some pages, two large ones and two broken ones.

    A paragraph is a chunk or two of 100 tokens.
    """
    return [
        *(sound(dice, kind, dice.randint(1, 4)) for kind in range(10)),
        *(sound(dice, kind, 30) for kind in (0, 3, 5, 6)),
        *(sound(dice, kind, large_paragraphs) for kind in (0, 2)),
        *(broken(dice, kind) for kind in (0, 3)),
    ]
