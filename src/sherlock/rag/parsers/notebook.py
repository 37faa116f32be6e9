"""Jupyter notebooks: Markdown as it stands, code in fences, and what the code printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import tabular, text


def parse(path: Path) -> Iterator[Section]:
    """Sections under the headings of the Markdown cells; what is no notebook, as JSON."""
    try:
        notebook = tabular.load_json(path)
    except (ValueError, RecursionError):
        notebook = None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        yield from tabular.parse_json(path)
        return
    language = _language(notebook)
    source = "".join(_cell(cell, language) for cell in cells if isinstance(cell, dict))
    yield from text.markdown_sections(source.splitlines(keepends=True))


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = kernel.get("language") if isinstance(kernel, dict) else None
    return language if isinstance(language, str) and language.isalnum() else ""


def _cell(cell: dict[str, Any], language: str) -> str:
    source = _joined(cell.get("source")).strip("\n")
    if cell.get("cell_type") != "code":
        return f"{source}\n\n" if source else ""
    outputs = cell.get("outputs")
    printed = (
        [_output(output) for output in outputs if isinstance(output, dict)]
        if isinstance(outputs, list)
        else []
    )
    shown = "".join(f"{_fenced(words)}\n" for words in printed if words.strip())
    return (f"{_fenced(source, language)}\n" if source else "") + shown


def _output(output: dict[str, Any]) -> str:
    """Printed text, a result's plain form, or the words of an error; pictures have none."""
    if "text" in output:
        return _joined(output["text"])
    if "evalue" in output:
        return f"{_joined(output.get('ename'))}: {_joined(output['evalue'])}"
    data = output.get("data")
    return _joined(data.get("text/plain")) if isinstance(data, dict) else ""


def _fenced(source: str, language: str = "") -> str:
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}{language}\n{source.strip(chr(10))}\n{fence}\n"


def _joined(value: Any) -> str:
    """Notebooks keep a text whole or as a list of its lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""
