"""The reading process with formats that mean harm; run as `sherlock.rag.reading` is.

Each does for real what a file can make a library do. The file holds the path of a folder, in which a format
leaves empty files to say what has happened: that much a confined process can do.
"""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sherlock.rag import parsers
from sherlock.rag.domain.models import Section
from sherlock.rag.reading.__main__ import main

PAGE = "A page of words. " * 4_000
"""Makes more than two batches of chunks of 100 tokens."""


def parse(path: Path, filename: str) -> Iterator[Section]:
    if harm := HARM.get(Path(filename).suffix):
        return harm(Path(path.read_text()))
    return parsers.parse(path, filename)


def break_down(notes: Path) -> Iterator[Section]:
    """As a library with an error nobody thought of."""
    yield Section(PAGE)
    raise IndexError("secret words of the document")


def go_on(notes: Path) -> Iterator[Section]:
    """Without end."""
    for page in itertools.count():
        (notes / f"page-{page}").touch()
        yield Section(PAGE)


def sleep(notes: Path) -> Iterator[Section]:
    """In a call that keeps the interpreter, so no thread of this process can end it."""
    (notes / f"pid-{os.getpid()}").touch()
    ctypes.PyDLL(None).sleep(3600)
    yield Section("late")


def spin(notes: Path) -> Iterator[Section]:
    yield Section(PAGE)
    while time:
        pass


def allocate(notes: Path) -> Iterator[Section]:
    yield Section(PAGE)
    held = [b"x" * (1 << 20) for _ in itertools.count()]
    yield Section(str(len(held)))


def share(notes: Path) -> Iterator[Section]:
    """Take memory that the kernel does not count as the process's own data."""
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    read_write, shared_anonymous = 3, 0x21
    size = 320 << 20
    where = library.mmap(None, size, read_write, shared_anonymous, -1, 0)
    ctypes.memset(where, 1, size)
    time.sleep(3600)
    yield Section("late")


def crash(notes: Path) -> Iterator[Section]:
    yield Section(PAGE)
    ctypes.string_at(0)


def crash_once(notes: Path) -> Iterator[Section]:
    return _once(notes, signal.SIGSEGV)


def be_killed_once(notes: Path) -> Iterator[Section]:
    return _once(notes, signal.SIGKILL)


def be_killed(notes: Path) -> Iterator[Section]:
    (notes / f"pid-{os.getpid()}").touch()
    yield Section(PAGE)
    os.kill(os.getpid(), signal.SIGKILL)


def chatter(notes: Path) -> Iterator[Section]:
    """Print, as libraries do."""
    for descriptor in (1, 2):
        os.write(descriptor, b"secret words of the document\n")
    print("secret", flush=True)
    yield Section("quiet")


def pry(notes: Path) -> Iterator[Section]:
    """Tell what is open to a parser that has been taken over."""
    yield Section(f"secrets: {[name for name in os.environ if name.startswith('SHERLOCK_')]}\n")
    yield Section(f"arguments: {sys.argv[1:]}\n")
    yield Section(f"files: {sorted(int(name) for name in os.listdir('/proc/self/fd'))}\n")
    for name, attempt in {
        "write": lambda: (notes / "written").write_text("words"),
        "fork": lambda: subprocess.run(["true"]),
    }.items():
        try:
            attempt()
            yield Section(f"{name}: done\n")
        except OSError as error:
            yield Section(f"{name}: {error.strerror}\n")


def _once(notes: Path, number: signal.Signals) -> Iterator[Section]:
    yield Section(PAGE)
    if not (notes / "seen").exists():
        (notes / "seen").touch()
        os.kill(os.getpid(), number)
        time.sleep(3600)
    yield Section(PAGE)


HARM: dict[str, Callable[[Path], Iterator[Section]]] = {
    ".breaks": break_down,
    ".endless": go_on,
    ".sleeps": sleep,
    ".spins": spin,
    ".allocates": allocate,
    ".shares": share,
    ".crashes": crash,
    ".crashes-once": crash_once,
    ".killed": be_killed,
    ".killed-once": be_killed_once,
    ".prints": chatter,
    ".pries": pry,
}

if __name__ == "__main__":
    main(parse)
