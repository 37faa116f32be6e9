"""One reading process, seen from its parent: started, asked, watched, ended."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Final, Literal

from sherlock.rag.domain.errors import Unavailable
from sherlock.rag.reading import messages

START_TIMEOUT_S: Final = 60.0
"""Loading takes some 0.7 s; a machine that is busy enough takes longer."""
MEMORY_CHECK_S: Final = 0.2
EXIT_TIMEOUT_S: Final = 1.0

_HAS_PROC: Final = Path("/proc/self/statm").exists()  # Linux; elsewhere ps is asked

_KEPT_VARIABLES: Final = (
    "PATH",
    "LANG",
    "TZ",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "TESSDATA_PREFIX",
)
_KEPT_PREFIXES: Final = ("PYTHON", "LC_")
_FROM_OUTSIDE: Final = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}

Cause = Literal["memory", "time", "crash", "killed"]


class Died(Exception):
    """The process is gone, and the file is not read. `killed`: by somebody else, as by a machine without
    memory."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Child:
    """Asked one file at a time. Whoever has it ends it, or hands it on when the file is read."""

    def __init__(self, process: asyncio.subprocess.Process, memory_bytes: int) -> None:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        self._process = process
        self._requests, self._answers = process.stdin, process.stdout
        self._memory_bytes = memory_bytes
        self._exceeded = False
        self._watching: asyncio.Task[None] | None = None
        self.files = 0
        """How many it was asked to read."""
        self.bytes = 0
        """Their size."""

    @classmethod
    async def start(cls, module: str, memory_bytes: int, *arguments: str) -> "Child":
        """A process that has loaded everything; `arguments` come after those two. Raises `Unavailable`.

        Nothing of a document stands among its arguments, and no setting of ours, which may be secret, in its
        environment.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, str(os.getpid()), str(memory_bytes), *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
        except OSError:
            raise Unavailable("The worker cannot start a process to read files in.") from None
        child = cls(process, memory_bytes)
        try:
            await child.answer(START_TIMEOUT_S)
        except Died:
            raise Unavailable("The process to read files in did not start.") from None
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, request: messages.Read, size: int) -> None:
        """Raises `Died`."""
        self.files += 1
        self.bytes += size
        self._watching = asyncio.ensure_future(self._watch_memory())
        try:
            self._requests.write(messages.pack_read(request))
            await self._requests.drain()
        except OSError:
            raise Died(await self._ended()) from None

    async def answer(self, within_s: float) -> messages.Answer:
        """The next answer. Raises `Died`, also when it takes longer than that, and ends the process then."""
        try:
            async with asyncio.timeout(within_s):
                header = await self._answers.readexactly(messages.HEADER.size)
                body = await self._answers.readexactly(messages.body_length(header))
            return messages.unpack_answer(body)
        except TimeoutError:
            await self.end()
            raise Died("memory" if self._exceeded else "time") from None
        except (asyncio.IncompleteReadError, OSError):
            raise Died(await self._ended()) from None
        except messages.Garbled:
            await self.end()
            raise Died("crash") from None

    async def rest(self) -> int:
        """The file is read: what the process holds now, in bytes."""
        await self._unwatch()
        return await resident_bytes(self._process.pid)

    async def end(self) -> None:
        """At once, whatever it does: it holds nothing worth keeping. Again is no error."""
        await self._unwatch()
        self._kill()
        self._requests.close()
        while await self._answers.read(1 << 16):
            pass  # asyncio lets go of the pipe when it is empty
        await self._process.wait()

    async def _ended(self) -> Cause:
        """Why it ended by itself."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_TIMEOUT_S)
        status = self._process.returncode
        await self.end()
        if self._exceeded:
            return "memory"
        if status == -signal.SIGXCPU:
            return "time"
        return "killed" if status in _FROM_OUTSIDE else "crash"

    def _kill(self) -> None:
        """With its process group, though it can start no process."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _watch_memory(self) -> None:
        """From outside, for the process's own limit does not hold on every system, nor for mapped files."""
        while self.alive:
            if await resident_bytes(self._process.pid) > self._memory_bytes:
                self._exceeded = True
                self._kill()
                return
            await asyncio.sleep(MEMORY_CHECK_S)

    async def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None


async def resident_bytes(pid: int) -> int:
    """Memory that a process has in RAM; 0 for one that is gone."""
    if _HAS_PROC:
        return _from_proc(pid)
    process = await asyncio.create_subprocess_exec(
        "ps", "-o", "rss=", "-p", str(pid), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    return int(told or 0) * 1024


def _from_proc(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
