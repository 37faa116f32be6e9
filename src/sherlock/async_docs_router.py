"""`/async-docs`: the messages for people to read, `/asyncapi.json` for programs; nothing from elsewhere."""

import functools
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from sherlock.asyncapi import document

router = APIRouter(include_in_schema=False)

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #8886; padding-top: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0;
  border-bottom: 1px solid #8883; }
nav a { margin-right: 1rem; }
"""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}

REFERENCE = "#/components/schemas/"


@router.get("/asyncapi.json")
async def asyncapi() -> JSONResponse:
    return JSONResponse(document())


@router.get("/async-docs")
async def async_docs() -> HTMLResponse:
    return HTMLResponse(page(), headers=HEADERS)


@functools.cache
def page() -> str:
    """The document as one page of HTML, without scripts."""
    shown = document()
    info = shown["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}: messages"
    paragraphs = "".join(f"<p>{text(part)}</p>" for part in info["description"].split("\n\n"))
    return "".join(
        [
            f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>",
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>",
            "<nav>",
            *(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in shown["operations"]),
            "</nav>",
            paragraphs,
            "<p>The same for programs: <a href='asyncapi.json'>asyncapi.json</a>.</p>",
            *(section for name in shown["operations"] for section in operation(shown, name)),
            "<h2>Shapes</h2>",
            *(
                part
                for name, schema in shown["components"]["schemas"].items()
                for part in shape(name, schema)
            ),
            "</body></html>",
        ]
    )


def operation(shown: Mapping[str, Any], name: str) -> Iterator[str]:
    said = shown["operations"][name]
    yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{text(said["summary"])}</p>'
    verb = "Sherlock receives" if said["action"] == "receive" else "Sherlock sends"
    yield from channel(shown, verb, said["channel"])
    if "reply" in said:
        yield from channel(shown, "and answers", said["reply"]["channel"])


def channel(shown: Mapping[str, Any], verb: str, reference: Mapping[str, str]) -> Iterator[str]:
    found = shown["channels"][reference["$ref"].rpartition("/")[2]]
    yield f"<p>{verb} <code>{escape(found['address'])}</code>: "
    for name in found["messages"]:
        message = shown["components"]["messages"][name]
        yield f"{kind(message['payload'])}</p>"
        headers = message.get("headers", {}).get("properties", {})
        if headers:
            listed = ", ".join(f"<code>{escape(header)}</code>" for header in headers)
            yield f"<p>Headers: {listed}</p>"


def shape(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}">{escape(name)}</h3>'
    if "description" in schema:
        yield f"<p>{text(schema['description'])}</p>"
    members = schema.get("properties", {})
    if not members:
        yield f"<p>{kind(schema)}</p>"
        return
    yield "<table><tr><th>member<th>type<th></tr>"
    required = schema.get("required", ())
    for member, of in members.items():
        needed = "required. " if member in required else ""
        told = text(of.get("description", ""))
        yield f"<tr><td><code>{escape(member)}</code><td>{kind(of)}<td>{needed}{told}</tr>"
    yield "</table>"


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in a few words, with links to the shapes it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(kind(part) for part in schema[union])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    named = str(schema.get("type", "anything"))
    if named == "array":
        return f"array of {kind(schema.get('items', {}))}"
    bounds = ((">=", "minimum"), ("<=", "maximum"), ("at least", "minLength"), ("at most", "maxLength"))
    told = [f"{sign} {schema[bound]}" for sign, bound in bounds if bound in schema]
    return escape(f"{named} ({', '.join(told)})" if told else named)


def text(plain: str) -> str:
    """Escaped, with what stands between backquotes as code."""
    parts = escape(" ".join(plain.split())).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
