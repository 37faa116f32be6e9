"""The README names every setting, route and command, and what it names exists."""

import re
from pathlib import Path

from sherlock.cli import app
from sherlock.config import Settings, known_names
from sherlock.main import create_app

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def test_every_setting_is_listed_and_every_listed_one_exists() -> None:
    listed = set(re.findall(r"\bSHERLOCK_[A-Z_]+[A-Z]\b", README))
    assert listed == known_names()


def test_every_route_is_listed() -> None:
    paths = {path.replace(":path", "") for path in create_app(Settings()).openapi()["paths"]}
    assert {path for path in paths if f"`{path}`" not in README} == set()


def test_every_command_is_listed() -> None:
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    assert {name for name in commands if f"`sherlock {name}" not in README} == set()
