"""Every row about the frameworks, against the Sherlock at the base URL that is given.

    python -m tests.clients.frameworks http://127.0.0.1:8802/v1

Prints what the checklist prints, one JSON object a line: first `{"client": ...}`, then for every row
`{"row", "ok", "detail"}`.
"""

import json
import sys
from importlib.metadata import version

import openai

from ..python.rows import ROW_HEADER, Given
from . import agents_sdk, langchain
from .vocabulary import packaged_vocabulary

ROWS = [*langchain.ROWS, *agents_sdk.ROWS]


def main(base_url: str) -> None:
    frameworks = dict.fromkeys(row.framework for row in ROWS)
    print(json.dumps({"client": ", ".join(f"{name} {version(name)}" for name in frameworks)}))
    given = Given.made(openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=30))
    for row in ROWS:
        named = given.client.with_options(default_headers={ROW_HEADER: row.key})
        detail = None
        try:
            row.check(given.with_client(named))
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
        print(json.dumps({"row": row.key, "ok": detail is None, "detail": detail}))


if __name__ == "__main__":
    with packaged_vocabulary():
        main(sys.argv[1])
