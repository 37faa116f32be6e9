"""The reading process, `python -m sherlock.rag.reading`, which `adapters.reading_process` starts.

    PARENT MEMORY_BYTES TIMEOUT_S OCR_LANGUAGES OCR_PAGES

It answers one request after another over its standard input and output, and ends when they are closed. What
libraries print goes nowhere: it may quote a document.
"""

import os
import sys
from functools import partial
from typing import BinaryIO

from sherlock.rag import parsers
from sherlock.rag.domain.errors import SherlockError
from sherlock.rag.domain.models import ReadingNotes
from sherlock.rag.parsers.ocr import Ocr
from sherlock.rag.reading import Parse, confinement, messages, read
from sherlock.rag.tokens import Cl100kCounter


def main(parse: Parse | None = None) -> None:
    parent, memory_bytes, timeout_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    languages, most_pages = sys.argv[4], int(sys.argv[5])
    confinement.end_with_parent(parent)
    counter = Cl100kCounter()
    counter.count("")  # loads the vocabulary
    ocr = Ocr(languages, most_pages) if languages else None
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    confinement.give_up(memory_bytes)
    serve(requests, answers, counter, timeout_s, parse or partial(parsers.parse, ocr=ocr))


def serve(
    requests: BinaryIO, answers: BinaryIO, counter: Cl100kCounter, timeout_s: float, parse: Parse
) -> None:
    """Until there are no more requests, nobody listens, or memory was refused."""

    def tell(answer: messages.Answer) -> None:
        answers.write(messages.pack_answer(answer))
        answers.flush()

    tell(messages.Ready())
    while body := messages.receive(requests):
        request = messages.unpack_read(body)
        confinement.grant_processor_time(timeout_s)
        try:
            notes: list[ReadingNotes] = []
            for batch in read(request.path, request.filename, request.chunking, counter, parse, notes.append):
                tell(messages.Batch(batch))
            tell(messages.End(*notes))
        except SherlockError as error:
            tell(messages.Failure(error))
        except MemoryError:
            tell(messages.OutOfMemory())
            return


if __name__ == "__main__":
    main()
