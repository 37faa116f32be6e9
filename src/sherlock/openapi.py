"""What the published document says beyond the routes: headers, security, examples, what the parameters mean.

FastAPI writes the document from the routes. `completed` adds what holds for many of them, so that no route
has to repeat it, and what FastAPI has no place for.
"""

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

DESCRIPTION = """\
Files, vector stores, hybrid search, embeddings and grounded chat, spoken as OpenAI's API: its clients work
with `base_url` set to this server's `/v1`.

Every error is the envelope `{"error": {"message", "type", "param", "code"}}`. Every answer carries
`x-request-id`. Lists are read in pages: `after` is the id of the last item of the page before.
"""
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TAGS = {
    "health": "Whether the process lives, and whether every part of it can work.",
    "chat": "Answers grounded in files, and the models that give them.",
    "embeddings": "Vectors of the server's own encoder.",
    "files": "The bytes as they were uploaded.",
    "responses": "Answers grounded in files, kept, and gone on with.",
    "uploads": "Files that come in parts.",
    "vector stores": "Files read, cut into chunks and made searchable.",
    "file batches": "Files attached to a vector store together.",
}

SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "OpenAI clients always send a key; where the server has none of its own, any will do.",
    }
}
OPTIONAL_BEARER: list[dict[str, list[str]]] = [{"bearer": []}, {}]

EVENT_STREAM = "text/event-stream"

# ── headers ─────────────────────────────────────────────────────────────────

REQUEST_ID = "x-request-id"
HEADERS: dict[str, dict[str, Any]] = {
    REQUEST_ID: {
        "description": "Names the request in the server's logs; the caller's own where it sent one.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    },
    "openai-poll-after-ms": {
        "description": "How long to wait before asking again, in milliseconds.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "sherlock-stages": {
        "description": "The stages of the retrieval, written like `Server-Timing`: "
        '`embed;dur=12.3, dense, keyword, fuse, rerank;degraded="late"`.',
        "schema": {"type": "string"},
    },
    "retry-after": {
        "description": "Seconds to wait, where that is known.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "x-should-retry": {
        "description": "`false` where the same request cannot succeed later; OpenAI's clients obey it.",
        "schema": {"type": "string", "enum": ["false"]},
    },
    "accept-ranges": {
        "description": "One range of bytes can be asked for.",
        "required": True,
        "schema": {"type": "string", "enum": ["bytes"]},
    },
    "content-disposition": {
        "description": "The file's name (RFC 6266).",
        "required": True,
        "schema": {"type": "string"},
    },
    "content-range": {
        "description": "Which bytes these are, and of how many (RFC 9110, section 14.4).",
        "required": True,
        "schema": {"type": "string"},
    },
    "etag": {
        "description": "The SHA-256 of the bytes.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[0-9a-f]{64}"$'},
    },
}
HEADERS_OF_STATUS = {
    "409": ["x-should-retry"],
    "429": ["retry-after"],
    "503": ["x-should-retry"],
}
_FILE_HEADERS = ["accept-ranges", "content-disposition", "etag"]
HEADERS_OF_OPERATION = {
    ("getVectorStoreFile", "200"): ["openai-poll-after-ms"],
    ("getVectorStoreFileBatch", "200"): ["openai-poll-after-ms"],
    ("searchVectorStore", "200"): ["sherlock-stages"],
    ("createChatCompletion", "200"): ["sherlock-stages"],
    ("createResponse", "200"): ["sherlock-stages"],
    ("downloadFile", "200"): _FILE_HEADERS,
    ("downloadFile", "206"): [*_FILE_HEADERS, "content-range"],
    ("downloadFile", "416"): ["content-range"],
}

# ── parameters ──────────────────────────────────────────────────────────────

PARAMETERS: dict[str, tuple[str, str | int | bool | None]] = {
    "file_id": ("The id of a file.", "file-6a5f3c1e9b7d2f4a8c0e1b3d"),
    "vector_store_id": ("The id of a vector store.", "vs_6a5f3c1e9b7d2f4a8c0e1b3d"),
    "batch_id": ("The id of a file batch.", "vsfb_6a5f3c1e9b7d2f4a8c0e1b3d"),
    "upload_id": ("The id of an upload.", "upload_6a5f3c1e9b7d2f4a8c0e1b3d"),
    "response_id": ("The id of a response.", "resp_6a5f3c1e9b7d2f4a8c0e1b3d"),
    "model": ("A model's full name or its last part.", "all-MiniLM-L6-v2"),
    "limit": ("The most items a page holds.", 20),
    "filter": ("Only files with this status.", None),
    "stream": ("Refused when true: a response is not streamed again.", None),
    "order": ("By time of creation.", "desc"),
    "after": ("The page that follows the item with this id.", None),
    "before": ("The page that ends before the item with this id.", None),
    "include": ("`sherlock`: say what the retrieval did, under the member `sherlock`.", None),
    "include[]": ("As `include`, the way OpenAI's clients write lists.", None),
}
"""What a parameter means wherever it occurs, and an example. A route's own description wins."""

# ── examples ────────────────────────────────────────────────────────────────

_STORE = PARAMETERS["vector_store_id"][1]
_FILE = PARAMETERS["file_id"][1]
_MESSAGES = [{"role": "user", "content": "What is the shut-off code of the turbine?"}]
EXAMPLES: dict[str, dict[str, Any]] = {
    "createVectorStore": {
        "empty": {"name": "plant"},
        "with files": {
            "name": "plant",
            "file_ids": [_FILE],
            "metadata": {"site": "north"},
            "expires_after": {"anchor": "last_active_at", "days": 30},
        },
    },
    "modifyVectorStore": {"rename": {"name": "plants"}, "never expire": {"expires_after": None}},
    "createVectorStoreFile": {
        "with attributes": {"file_id": _FILE, "attributes": {"year": 2026, "site": "north", "draft": False}}
    },
    "updateVectorStoreFileAttributes": {"replace": {"attributes": {"year": 2027}}},
    "searchVectorStore": {
        "plain": {"query": "shut-off code of the turbine"},
        "filtered": {
            "query": ["shut-off code", "emergency stop"],
            "max_num_results": 5,
            "filters": {
                "type": "and",
                "filters": [
                    {"type": "gte", "key": "year", "value": 2026},
                    {"type": "in", "key": "site", "value": ["north", "south"]},
                ],
            },
            "ranking_options": {"score_threshold": 0.2},
        },
    },
    "createVectorStoreFileBatch": {
        "the same for all": {"file_ids": [_FILE], "attributes": {"site": "north"}},
        "each its own": {"files": [{"file_id": _FILE, "attributes": {"year": 2026}}]},
    },
    "createUpload": {
        "a large report": {
            "filename": "report.txt",
            "purpose": "assistants",
            "bytes": 50_000,
            "mime_type": "text/plain",
        }
    },
    "createResponse": {
        "plain": {"model": "smollm2-135m-instruct", "input": "What is the shut-off code of the turbine?"},
        "grounded and streamed": {
            "model": "smollm2-135m-instruct",
            "input": _MESSAGES,
            "tools": [{"type": "file_search", "vector_store_ids": [_STORE]}],
            "stream": True,
        },
    },
    "createEmbedding": {
        "texts": {"model": "all-MiniLM-L6-v2", "input": ["a turbine", "a mouse"]},
        "tokens": {"model": "all-MiniLM-L6-v2", "input": [[64, 49841]], "encoding_format": "base64"},
    },
    "createChatCompletion": {
        "plain": {"model": "smollm2-135m-instruct", "messages": _MESSAGES},
        "grounded and streamed": {
            "model": "smollm2-135m-instruct",
            "messages": _MESSAGES,
            "tools": [{"type": "file_search", "vector_store_ids": [_STORE]}],
            "stream": True,
        },
    },
}
"""Bodies by operation. A test sends each of them."""


# ── the document ────────────────────────────────────────────────────────────


def completed(document: Document) -> Document:
    """FastAPI's document with all of the above, in place."""
    document["info"] |= {"description": DESCRIPTION, "license": LICENSE}
    document["security"] = OPTIONAL_BEARER
    document["components"] |= {"securitySchemes": SECURITY_SCHEMES, "headers": HEADERS}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for operation in operations(document):
        name = operation["operationId"]
        for status, response in operation["responses"].items():
            wanted = [*HEADERS_OF_STATUS.get(status, []), *HEADERS_OF_OPERATION.get((name, status), [])]
            response["headers"] = {
                header: {"$ref": f"#/components/headers/{header}"} for header in [REQUEST_ID, *wanted]
            }
            if EVENT_STREAM in response.get("content", {}):
                response["content"][EVENT_STREAM]["schema"] = event(
                    response["content"][EVENT_STREAM]["schema"]
                )
        for parameter in operation.get("parameters", []):
            description, example = PARAMETERS.get(parameter["name"], (None, None))
            if description is not None:
                parameter.setdefault("description", description)
            if example is not None:
                parameter.setdefault("example", example)
        if name in EXAMPLES:
            operation["requestBody"]["content"]["application/json"]["examples"] = {
                title: {"value": value} for title, value in EXAMPLES[name].items()
            }
    return document


def event(written: Document) -> Document:
    """An event of a stream whose data is `written` as JSON, in the members OpenAPI 3.2 gives an event."""
    in_json = {"contentMediaType": "application/json", "contentSchema": written}
    return {
        "type": "object",
        "description": "One of the events.",
        "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [{"const": "[DONE]"}, {"type": "string", **in_json}]},
        },
    }


def operations(document: Document) -> Iterator[Document]:
    for path in document["paths"].values():
        yield from path.values()
