"""The checklist of OpenAI's API, run with whichever version of the official Python client is installed.

    python -m tests.clients.checklist http://127.0.0.1:8802/v1

Prints one JSON object a line: first `{"client": ...}`, then `{"row", "ok", "detail"}` for every row. Needs
nothing but the standard library and `openai`. The same rows for Node.js are `checklist.mjs`.
"""

import json
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import openai
from tests.clients.python import (
    chat,
    chat_streams,
    embeddings,
    file_batches,
    files,
    models,
    response_streams,
    responses,
    search,
    stored_chats,
    uploads,
    vector_store_files,
    vector_stores,
)
from tests.clients.python.rows import ROW_HEADER, Given, Row

ROWS: list[Row] = [
    *files.ROWS,
    *uploads.ROWS,
    *vector_stores.ROWS,
    *search.ROWS,
    *vector_store_files.ROWS,
    *file_batches.ROWS,
    *embeddings.ROWS,
    *models.ROWS,
    *chat.ROWS,
    *chat_streams.ROWS,
    *stored_chats.ROWS,
    *responses.ROWS,
    *response_streams.ROWS,
]


AT_ONCE = 4
"""Most rows wait for an ingest now and then."""


def failure(row: Row, given: Given) -> str | None:
    """What went wrong in the row, and in which line; `None`: nothing."""
    try:
        row.check(given.with_client(given.client.with_options(default_headers={ROW_HEADER: row.key})))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.line for frame in frames if frame.name == row.check.__name__), None)
        return f"{type(error).__name__}: {error} in: {line}"
    return None


def main(base_url: str) -> None:
    print(json.dumps({"client": f"Python {openai.__version__}"}))
    given = Given.made(openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=30))
    alone = [row for row in ROWS if row.alone]
    others = [row for row in ROWS if not row.alone]
    details = [failure(row, given) for row in alone]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        details += pool.map(failure, others, [given] * len(others))
    for row, detail in zip([*alone, *others], details, strict=True):
        print(json.dumps({"row": row.key, "ok": detail is None, "detail": detail}))


if __name__ == "__main__":
    main(sys.argv[1])
