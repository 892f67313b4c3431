"""Where a thread's processor time goes, by looking at it several hundred times a second.

Unlike cProfile it makes no function slower. A look finds the innermost Python function, so what
is built in, and what the kernel does for it, counts as its caller's. Looks at a thread that sleeps
in its event loop don't count.
"""

import gc
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from tests.support.daemon_process import REPOSITORY

EVERY_SECONDS: Final = 0.002
#: A thread that did less since the last look is not looked at.
WORKED_SECONDS: Final = 0.0001
#: How soon a thread that computes lets the sampler look.
SWITCH_SECONDS: Final = 0.0001
LOOP: Final = "event loop (uvloop)"
_SITE: Final = tuple({sysconfig.get_paths()[name] + "/" for name in ("purelib", "platlib")})
_STDLIB: Final = sysconfig.get_paths()["stdlib"] + "/"
#: What is shown under one name.
_PACKAGES: Final = {
    "aiobotocore": "aiobotocore and botocore", "botocore": "aiobotocore and botocore",
    "dateutil": "aiobotocore and botocore", "yarl": "aiohttp", "multidict": "aiohttp",
    "propcache": "aiohttp", "frozenlist": "aiohttp", "aiohappyeyeballs": "aiohttp",
    "uvloop": LOOP,
}  # fmt: skip


class Sampler:
    """Looks at the thread that made it, between `with` and its end."""

    def __init__(self) -> None:
        self._watched = threading.get_ident()
        self._status = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._switch = sys.getswitchinterval()
        #: (file, function) -> looks that found it.
        self._found: Counter[tuple[str, str]] = Counter()
        self._began = 0.0
        #: Processor time of the watched thread, and of the sampler itself.
        self.seconds = self.own_seconds = 0.0

    def __enter__(self) -> Self:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._began = time.thread_time()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.seconds = time.thread_time() - self._began
        self._over.set()
        self._thread.join()
        sys.setswitchinterval(self._switch)

    @property
    def looks(self) -> int:
        """How often the thread was looked at."""
        return self._found.total()

    def by_function(self) -> dict[str, float]:
        """Return the watched thread's seconds by package and function."""
        each = self.seconds / max(1, self._found.total())
        return {
            f"{_package_of(file)}\t{_shown(file)} {name}": count * each
            for (file, name), count in self._found.items()
        }

    def _run(self) -> None:
        clock, before = time.pthread_getcpuclockid(self._watched), 0.0
        while not self._over.is_set():
            time.sleep(EVERY_SECONDS)
            before, last = time.clock_gettime(clock), before
            if before - last < WORKED_SECONDS:
                continue
            code = _frame_of(self._watched).f_code
            if _package_of(code.co_filename) != LOOP or not self._sleeps():
                self._found[code.co_filename, code.co_qualname] += 1
        self.own_seconds = time.thread_time()

    def _sleeps(self) -> bool:
        return self._status.read_text().rpartition(")")[2].split()[0] == "S"


def _frame_of(thread: int) -> FrameType:
    """Return what a thread does now.

    No garbage is collected meanwhile: in CPython 3.11 that may give the interpreter away within
    the call, and all threads wait for ever (gh-106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()[thread]
    finally:
        if collects:
            gc.enable()


def _package_of(file: str) -> str:
    for root in _SITE:
        if file.startswith(root):
            name = file.removeprefix(root).split("/")[0]
            return _PACKAGES.get(name, name)
    if file.startswith(_STDLIB):
        # Its caller is what is found while the loop itself works.
        if file.endswith("asyncio/runners.py"):
            return LOOP
        return "asyncio" if "/asyncio/" in file else "standard library"
    return "the benchmark" if file.startswith(f"{REPOSITORY}/tests/") else "ours"


def _shown(file: str) -> str:
    for root in (*_SITE, f"{REPOSITORY}/", _STDLIB):
        file = file.removeprefix(root)
    return file
