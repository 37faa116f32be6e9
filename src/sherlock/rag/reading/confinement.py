"""A process gives up what reading files does not need. Nothing of it can be taken back.

Every measure stands by itself: where a system does not know one, the others hold.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from typing import Final

_OPEN_FILES: Final = 64
"""The document, its pipes, and what an import opens."""
_PARENT_CHECK_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38


def end_with_parent(parent: int) -> None:
    """Die when the process `parent` dies, even by `kill -9`, and in the middle of a library's call.

    Linux does that itself. Elsewhere a thread looks, which a call that keeps the interpreter can hold up, no
    longer than the limit of processor time.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=watch, daemon=True, name="parent").start()


def give_up(memory_bytes: int) -> None:
    """No more memory than that, no written files, no core dumps, no programs, no more privileges.

    `RLIMIT_DATA` counts memory that is the process's own, not code or mapped files. macOS accepts it and does
    not enforce it; there the parent's look from outside is what holds.
    """
    if sys.platform == "linux":
        # When the machine runs out of memory, this process goes first, not the encoder or the database.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for limit, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))


def grant_processor_time(seconds: float) -> None:
    """From now on; the kernel ends the process that uses more (SIGXCPU)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    value = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(
        resource.RLIMIT_CPU, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard)
    )


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
