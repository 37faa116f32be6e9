"""Folders for a job's copy of its file. What a killed worker left is removed by the next one to start."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "sherlock-ingest-"
_LOCK: Final = "lock"


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that nobody else uses, removed in the end."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        unlocked = folder / "new"
        # The kernel lets go of a lock with the process. The name comes last: a named lock was held once.
        with unlocked.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            unlocked.rename(folder / _LOCK)
            yield folder


def remove_abandoned() -> int:
    """How many folders were removed whose process has gone; those of other users are left alone."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the process lives
                shutil.rmtree(folder)
                removed += 1
    return removed
