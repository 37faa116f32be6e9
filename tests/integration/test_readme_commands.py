"""What the README tells a newcomer to type works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.processes import REPO, Deployment

pytestmark = pytest.mark.torch

ADDRESS = "http://127.0.0.1:8802"


def blocks(language: str) -> list[str]:
    text = (REPO / "README.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_curl_commands(sherlock: Deployment, tmp_path: Path) -> None:
    script = "set -eu\n" + "\necho\n".join(blocks("bash"))
    assert script.count(ADDRESS) == 1
    ran = subprocess.run(
        ["bash", "-c", script.replace(ADDRESS, sherlock.url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert '"status":"completed"' in ran.stdout
    assert ran.stdout.count("KX-4471-Q") >= 4, "found, answered, quoted and downloaded"
    assert "data: [DONE]" in ran.stdout
    assert ran.stdout.count('"deleted":true') == 2
    assert '"error"' not in ran.stdout


def test_python_program(sherlock: Deployment, tmp_path: Path) -> None:
    (tmp_path / "turbine.txt").write_text(
        "The emergency shut-off code of the Marlowe turbine is KX-4471-Q.\n"
    )
    [program] = blocks("python")
    ran = subprocess.run(
        [sys.executable, "-c", program.replace(ADDRESS, sherlock.url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    found, answer, cited, *again = ran.stdout.splitlines()
    assert "KX-4471-Q" in found
    assert "KX-4471-Q" in answer
    assert cited.startswith("turbine.txt says:")
    assert again, "the second of two chained responses"
