"""The import rule: dependencies point one way. Most of it stands in pyproject.toml, for import-linter."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sherlock"


def imports(file: Path) -> Iterator[str]:
    """Full names of the modules a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_contracts_are_kept() -> None:
    """In a process of its own: the linter changes the path and the logging of the one it runs in."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_module_has_its_place_in_a_contract() -> None:
    """A new file joins a layer or the leaves in pyproject.toml, or the linter says nothing about it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = set(re.findall(r"sherlock[.\w]*", str(contracts)))
    files = [*PACKAGE.iterdir(), *(PACKAGE / "rag").iterdir()]
    places = {
        ".".join(["sherlock", *path.relative_to(PACKAGE).with_suffix("").parts])
        for path in files
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.name != "__init__.py"
    }
    assert places <= named


@pytest.mark.parametrize("file", modules(PACKAGE / "rag" / "domain"), ids=lambda file: file.stem)
def test_domain_imports_only_the_standard_library(file: Path) -> None:
    foreign = [
        name
        for name in imports(file)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("sherlock.rag.domain.")
    ]
    assert not foreign


def test_telemetry_sdk_only_in_one_module() -> None:
    sdk = ("opentelemetry.sdk", "opentelemetry.exporter")
    users = {file.name for file in modules() for name in imports(file) if name.startswith(sdk)}
    assert users == {"telemetry.py"}


def test_adapters_are_named_only_by_wiring() -> None:
    users = {
        file.relative_to(PACKAGE).as_posix()
        for file in modules()
        for name in imports(file)
        if name.startswith("sherlock.rag.adapters.") and "adapters" not in file.parts
    }
    assert users <= {"wiring.py"}
