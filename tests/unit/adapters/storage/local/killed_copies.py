"""A segment copied over an earlier copy by processes that are killed, one at each of its steps.

Run as a module: for each step one JSON line, which says of each object whether it is the earlier
copy's, the new one's, something else or gone; the last line is of a copy that was not killed.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Final

from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import SEGMENT, Buffer

#: Whatever changes a directory, or waits for the disk.
STEPS: Final = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "fsync", "fdatasync")


def content(which: str, kind: ObjectKind) -> bytes:
    return f"{which} {kind.value}".encode() * (100 if which == "old" else 101)


async def copy(root: Path, which: str) -> None:
    storage = LocalStorage(str(root), owner="1")
    await storage.open()
    rows = [(kind, SEGMENT + kind.value, Buffer(content(which, kind))) for kind in ObjectKind]
    await storage.put_segment(rows, progress=Progress())
    await storage.close()


def killed_at(step: int, root: Path) -> bool:
    """Copy in a process that is killed before this step; False if it came to its end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    counter = itertools.count()
    for name in STEPS:
        setattr(os, name, _deadly(getattr(os, name), counter, step))
    asyncio.run(copy(root, "new"))
    os._exit(0)


def _deadly(real: Any, counter: Any, step: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    return call


def seen(root: Path) -> dict[str, str]:
    found = {}
    for kind in ObjectKind:
        path = root / (SEGMENT + kind.value)
        body = path.read_bytes() if path.exists() else None
        whose = {content("old", kind): "old", content("new", kind): "new", None: "gone"}
        found[kind.value] = whose.get(body, "torn")
    return found


def main(home: Path) -> None:
    first = home / "first"
    first.mkdir()
    child = os.fork()
    if not child:
        asyncio.run(copy(first, "old"))
        os._exit(0)
    os.waitpid(child, 0)
    for step in itertools.count():
        root = home / str(step)
        shutil.copytree(first, root)
        killed = killed_at(step, root)
        print(json.dumps(seen(root)), flush=True)  # noqa: T201 - what the test reads
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
