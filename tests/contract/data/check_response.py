#!/usr/bin/env python3
r"""Check what a server said against openai-subset.json (which lies next to this file).

    check_response.py METHOD PATH_TEMPLATE STATUS < body.json
    check_response.py --sse METHOD PATH_TEMPLATE 200 < stream.txt
    check_response.py --request METHOD PATH_TEMPLATE - < body.json

Prints one violation a line. Exit status: 0 none, 1 some, 2 called wrongly.

PATH_TEMPLATE may carry the /v1 prefix, and may be a concrete path (/v1/files/file-abc).
--relaxed lets an optional property be null where the schema forbids it (the hosted service and the
spec's own examples do that: expires_after, system_fingerprint, user, an unfinished response's usage).
--ignore=REGEX drops the violations whose text it is found in, for deliberate extensions
(--ignore='message\.annotations|delta\.annotations').

From tests:  from check_response import violations, request_violations, stream_violations

Unions are judged by their tag (type/object/role): a wrong body yields the errors of the branch it
names, not "valid under none of 28 schemas". oneOf is judged like anyOf: two fitting branches are
not an error. Needs jsonschema 4.18 or later.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators

SPEC = pathlib.Path(__file__).with_name("openai-subset.json")
TAGS = ("type", "object", "role")
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
# Bytes, whatever the spec's "string" says: nothing to check in JSON terms.
RAW = {("get", "/files/{file_id}/content")}


@functools.lru_cache(maxsize=1)
def spec() -> dict[str, Any]:
    with SPEC.open(encoding="utf-8") as f:
        loaded: dict[str, Any] = json.load(f)
    return loaded


def _deref(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = spec()
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        node = target
    return node


def _is_type(instance: Any, names: str | list[str]) -> bool:
    for name in [names] if isinstance(names, str) else names:
        if isinstance(instance, bool):
            if name == "boolean":
                return True
        elif isinstance(instance, JSON_TYPES[name]):
            return True
        elif name == "integer" and isinstance(instance, float):
            return instance.is_integer()
    return False


def _fits(branch: dict[str, Any], instance: Any) -> bool:
    """False when the branch's JSON type or tag already rules the instance out."""
    branch = _deref(branch)
    if "type" in branch and not _is_type(instance, branch["type"]):
        return False
    if not all(_fits(b, instance) for b in branch.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in branch and not any(_fits(b, instance) for b in branch[key]):
            return False
    if isinstance(instance, dict):
        for tag in TAGS:
            allowed = branch.get("properties", {}).get(tag)
            if allowed is not None and tag in instance:
                enum = _deref(allowed).get("enum")
                if enum is not None and instance[tag] not in enum:
                    return False
    return True


def _union(validator: Any, branches: list[Any], instance: Any, schema: Any) -> Iterator[ValidationError]:
    candidates = [(i, b) for i, b in enumerate(branches) if _fits(b, instance)]
    if not candidates:
        if isinstance(instance, dict):
            what = "object tagged " + (
                ", ".join(f"{t}={instance[t]!r}" for t in TAGS if t in instance) or "by nothing"
            )
        else:
            what = json.dumps(instance)[:80]
        yield ValidationError(f"{what} fits none of the {len(branches)} alternatives")
        return
    best: list[ValidationError] | None = None
    for i, branch in candidates:
        errors = list(validator.descend(instance, branch, schema_path=i))
        if not errors:
            return
        if best is None or len(errors) < len(best):
            best = errors
    yield from best or ()


def _relaxed_properties(
    validator: Any, properties: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    required = schema.get("required", ())
    for name, sub in properties.items():
        if name in instance and not (instance[name] is None and name not in required):
            yield from validator.descend(instance[name], sub, path=name, schema_path=name)


_Strict = validators.extend(Draft202012Validator, {"anyOf": _union, "oneOf": _union})
_Relaxed = validators.extend(_Strict, {"properties": _relaxed_properties})


def _errors(schema: dict[str, Any], instance: Any, relaxed: bool) -> list[str]:
    root = {"components": spec()["components"], "allOf": [schema]}
    found = []
    for e in (_Relaxed if relaxed else _Strict)(root).iter_errors(instance):
        at = "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in e.absolute_path)
        text = e.message if len(e.message) <= 300 else e.message[:300] + "..."
        found.append(f"{at}: {text}")
    return sorted(found)


def find_path(path: str) -> str | None:
    """The template in the spec that `path` is, or is an instance of."""
    path = re.sub(r"^/v1(?=/)", "", path.split("?", 1)[0]).rstrip("/") or "/"
    paths = spec()["paths"]
    if path in paths:
        return path
    hits = [t for t in paths if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", t.replace("{model}", ".+")), path)]
    return min(hits, key=lambda t: t.count("{")) if hits else None


def _operation(method: str, path: str) -> tuple[dict[str, Any] | None, str, list[str]]:
    template = find_path(path)
    if template is None:
        return None, path, [f"{path}: no such path in the contract"]
    operation = spec()["paths"][template].get(method.lower())
    if operation is None:
        return None, template, [f"{template}: no {method.upper()} in the contract"]
    return operation, template, []


def violations(
    method: str, path_template: str, status: int | str, body: Any, *, relaxed: bool = False
) -> list[str]:
    """What is wrong with this JSON response body; an empty list when nothing is."""
    operation, template, wrong = _operation(method, path_template)
    if operation is None:
        return wrong
    status = int(status)
    documented = operation["responses"]
    if str(status) in documented:
        content = _deref(documented[str(status)]).get("content", {})
        if not content or (method.lower(), template) in RAW:
            return []
        media = content.get("application/json")
        return [] if media is None else _errors(media["schema"], body, relaxed)
    if status >= 400:
        return _errors({"$ref": "#/components/schemas/ErrorResponse"}, body, relaxed)
    return [f"status {status} is not one the contract knows here ({', '.join(documented)})"]


def request_violations(method: str, path_template: str, body: Any, *, relaxed: bool = False) -> list[str]:
    """What the contract would hold against this JSON request body."""
    operation, template, wrong = _operation(method, path_template)
    if operation is None:
        return wrong
    media = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if media is None:
        return [f"{method.upper()} {template} takes no JSON body"]
    return _errors(media["schema"], body, relaxed)


def parse_sse(text: str) -> list[tuple[str | None, Any]]:
    """(event name, decoded data or the string "[DONE]") for each event of a stream.

    Raises ValueError for an event without data: only comment lines are safe as keep-alives, the
    python SDK decodes the empty data of anything else (event:, retry:, id:) and fails.
    """
    events = []
    for block in re.split(r"\r?\n\r?\n", text):
        name, data, fields = None, [], []
        for line in block.splitlines():
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field:
                fields.append(field)
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
        if fields and not any(data):
            raise ValueError(f"an event with no data: {block!r}")
        if data:
            joined = "\n".join(data)
            events.append((name, joined if joined.startswith("[DONE]") else json.loads(joined)))
    return events


def stream_violations(
    method: str, path_template: str, events: Iterable[tuple[str | None, Any]], *, relaxed: bool = False
) -> list[str]:
    """Checks each event's schema, then the order both SDKs' stream helpers rely on."""
    operation, template, wrong = _operation(method, path_template)
    if operation is None:
        return wrong
    media = operation["responses"].get("200", {}).get("content", {}).get("text/event-stream")
    if media is None:
        return [f"{method.upper()} {template} has no event stream"]
    events = list(events)
    found = []
    for i, (_, data) in enumerate(events):
        if data != "[DONE]" and not (isinstance(data, dict) and data.get("error")):
            found += [f"event {i}: {v}" for v in _errors(media["schema"], data, relaxed)]
    order = _chat_order if template == "/chat/completions" else _responses_order
    return found + list(order(events))


def _chat_order(events: list[tuple[str | None, Any]]) -> Iterator[str]:
    chunks = [d for _, d in events if isinstance(d, dict)]
    if any(c.get("error") for c in chunks):
        if not chunks[-1].get("error"):
            yield "an error event must be the last one"
        return
    if not events or events[-1][1] != "[DONE]":
        yield "the stream does not end with data: [DONE]"
    for key in ("id", "created", "model"):
        if len({json.dumps(c.get(key)) for c in chunks}) > 1:
            yield f"{key} differs between chunks"
    roles: dict[int, int] = {}
    finished: dict[int, int] = {}
    annotated: dict[int, int] = {}
    order: list[int] = []
    called: set[tuple[Any, Any, str]] = set()
    for n, chunk in enumerate(chunks):
        for choice in chunk.get("choices", []):
            i, delta = choice.get("index"), choice.get("delta") or {}
            if i not in order:
                order.append(i)
                if not delta.get("role"):
                    yield f"choice {i}: its first delta has no role"
            elif finished.get(i) and delta:
                yield f"choice {i}: chunk {n} carries a delta after finish_reason"
            roles[i] = roles.get(i, 0) + bool(delta.get("role"))
            finished[i] = finished.get(i, 0) + bool(choice.get("finish_reason"))
            for call in delta.get("tool_calls") or ():
                for key, value in (
                    ("id", call.get("id")),
                    ("name", (call.get("function") or {}).get("name")),
                ):
                    if value and (i, call.get("index"), key) in called:
                        yield f"choice {i}: tool call {call.get('index')} repeats its {key}; helpers join it"
                    if value:
                        called.add((i, call.get("index"), key))
            if delta.get("annotations"):
                annotated[i] = annotated.get(i, 0) + 1
                for k, a in enumerate(delta["annotations"]):
                    if isinstance(a, dict) and a.get("index", k) != k:
                        yield f"choice {i}: annotation {k} has index {a['index']}; stream helpers merge by it"
        if chunk.get("usage") and any(
            later.get("choices") or later.get("usage") for later in chunks[n + 1 :]
        ):
            yield f"chunk {n} has usage but is not the last chunk"
    if order != sorted(order):
        yield f"choices first appear in the order {order}; helpers need 0, 1, 2, ..."
    for i in order:
        if roles[i] > 1:
            yield f"choice {i}: role sent {roles[i]} times; helpers concatenate it"
        if finished[i] != 1:
            yield f"choice {i}: finish_reason sent {finished[i]} times, not once"
        if annotated.get(i, 0) > 1:
            yield f"choice {i}: annotations sent in {annotated[i]} chunks, not one"


def _responses_order(events: list[tuple[str | None, Any]]) -> Iterator[str]:
    data = [(n, d) for n, d in events if isinstance(d, dict)]
    types = [d.get("type") for _, d in data]
    if not types or types[0] != "response.created":
        yield "the first event is not response.created"
    if not types or types[-1] not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ):
        yield "the last event is not response.completed, response.incomplete, response.failed or error"
    for i, (name, d) in enumerate(data):
        if name != d.get("type"):
            yield f"event {i}: the event: line says {name!r}, type says {d.get('type')!r}"
        if d.get("sequence_number") != i:
            yield f"event {i}: sequence_number is {d.get('sequence_number')!r}, expected {i}"
    if len({d["response"].get("id") for _, d in data if isinstance(d.get("response"), dict)}) > 1:
        yield "the response id changes during the stream"
    items: dict[Any, Any] = {}
    parts: set[tuple[Any, Any]] = set()
    for i, (_, d) in enumerate(data):
        kind, index = d.get("type"), d.get("output_index")
        if kind == "response.output_item.added":
            if index in items:
                yield f"event {i}: output_index {index} added twice"
            items[index] = (d.get("item") or {}).get("id")
        elif index is not None and index not in items:
            yield f"event {i}: {kind} for output_index {index} before its output_item.added"
        elif "item_id" in d and d["item_id"] != items.get(index):
            yield f"event {i}: {kind} has item_id {d['item_id']!r}, the item is {items.get(index)!r}"
        if kind == "response.content_part.added":
            parts.add((index, d.get("content_index")))
        elif (
            kind and kind.startswith("response.output_text.") and (index, d.get("content_index")) not in parts
        ):
            yield f"event {i}: {kind} before its content_part.added"


def main(argv: list[str]) -> int:
    flags = {a for a in argv if a.startswith("--") and not a.startswith("--ignore=")}
    ignore = [a.removeprefix("--ignore=") for a in argv if a.startswith("--ignore=")]
    rest = [a for a in argv if not a.startswith("--")]
    if len(rest) != 3 or flags - {"--relaxed", "--sse", "--request"}:
        print(__doc__, file=sys.stderr)
        return 2
    method, path, status = rest
    relaxed = "--relaxed" in flags
    raw = sys.stdin.buffer.read()
    found_path = find_path(path)
    try:
        if "--sse" in flags:
            found = stream_violations(method, path, parse_sse(raw.decode("utf-8")), relaxed=relaxed)
        elif "--request" in flags:
            found = request_violations(method, path, json.loads(raw), relaxed=relaxed)
        elif (method.lower(), found_path) in RAW and status == "200":
            found = []
        else:
            found = violations(
                method, path, status, json.loads(raw) if raw.strip() else None, relaxed=relaxed
            )
    except ValueError as e:
        found = [f"not readable: {e}"]
    found = [f for f in found if not any(re.search(pattern, f) for pattern in ignore)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
