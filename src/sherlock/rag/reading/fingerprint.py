"""What chunks are made by: two files are cut alike if their bytes, names and sizes and this are the same."""

import re
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_OURS = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@cache
def fingerprint(*settings: str) -> str:
    """Changes with our code, with the version of any library we ask for, and with `settings`.

    More than has to: reading a file once more is better than keeping what an older parser made of it. Takes
    some 30 ms the first time.
    """
    digest = sha256()
    for file in sorted(_OURS.rglob("*.py")):
        digest.update(str(file.relative_to(_OURS)).encode())
        digest.update(file.read_bytes())
    for asked_for in sorted(requires("sherlock") or []):
        name = _NAME.match(asked_for)
        digest.update(f"\n{asked_for} {_installed(name[0]) if name else ''}".encode())
    digest.update("\0".join(settings).encode())
    return digest.hexdigest()[:32]


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # an extra that is not there
        return ""
