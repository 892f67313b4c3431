"""Remote storage on a file system: atomic, verified and durable, one broker or a shared mount.

Objects are plain files named by their keys, so `sendfile` serves them. Temporary files and locks
lie in `.rlmm` below the same root: a rename never crosses file systems, a listing never shows them.
"""

import asyncio
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.storage.local.copying import Attempt
from rlmm_daemon.adapters.storage.local.deletion import Deletion, directory_of
from rlmm_daemon.adapters.storage.local.root import Root
from rlmm_daemon.adapters.storage.local.tree import Tree
from rlmm_daemon.domain.errors import ObjectMissing, RlmmError, StorageUnavailable
from rlmm_daemon.ports.disk_threads import DiskThreads
from rlmm_daemon.ports.passes import Passes, PassStopped
from rlmm_daemon.ports.storage import (
    ControlObject,
    ObjectInfo,
    ObjectKind,
    ProbeResult,
    Progress,
    Source,
    StoredObject,
    UploadInfo,
)
from rlmm_daemon.ports.threads import come_behind, let_go

READ_BYTES: Final = 1024 * 1024
THREADS_MAX: Final = 4
LOCK_TRIES: Final = 200
LOCK_PAUSE_SECONDS: Final = 0.01
#: Of each step of a probe.
PROBE_SECONDS: Final = 10.0
_HANGS: Final = "timeout"

P = ParamSpec("P")
T = TypeVar("T")


class LocalStorage:
    """`ports.storage.RemoteStorage` below a directory that exists. `owner` names this daemon."""

    def __init__(
        self,
        root: str,
        *,
        owner: str,
        threads_max: int = THREADS_MAX,
        reads_only: bool = False,
        passes: Passes | None = None,
    ) -> None:
        """`reads_only`: it may run beside the owner's daemon, so `open` changes nothing.

        `passes` does what takes long of a copy; by default the copying threads themselves do.
        """
        self._root = Root(root)
        # What looks like a path would leave the temporary area.
        self._root.file(owner)
        self._tree = Tree(self._root, owner, reads_only=reads_only)
        self._owner = owner
        #: Attempts are named by it and by their number: nobody else's has such a name.
        self._run, self._numbers = os.urandom(8).hex(), itertools.count()
        #: That threads are at, whether or not anybody waits for them still.
        self._deletions: list[Deletion] = []
        self._passes = passes or InThreads()
        self._threads = DiskThreads(threads_max, "storage.copy", come_behind)
        #: Short calls: a queue of long copies must not hold them up.
        self._calls = DiskThreads(threads_max, "storage.call")

    async def open(self) -> None:
        """Check the root and sweep what an earlier run of this owner left."""
        await self._call(self._tree.open)

    async def put_segment(
        self, objects: Sequence[tuple[ObjectKind, str, Source]], *, progress: Progress
    ) -> Sequence[StoredObject]:
        """Copy in one worker thread; see `copying`. A cancel waits for its end, which is soon.

        Where the disk hangs it is not waited for: what is stored by then may show up later.
        """
        assert objects, "a segment has objects"
        for _, key, _ in objects:
            self._root.file(key)
            self._require_not_deleted(key)
        attempt = Attempt(
            root=self._root,
            directory=f"{self._tree.own_attempts}/{self._run}-{next(self._numbers)}",
            stop=threading.Event(),
            progress=progress,
            passes=self._passes,
        )
        future = self._threads.run(functools.partial(self._attempt, attempt, objects))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            attempt.stop.set()
            await _ended(future)
            raise

    async def fetch(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the range in pieces of at most 1 MiB, each read in a thread."""
        descriptor = await self._calls.run(
            functools.partial(self._open_object, key), unwanted=os.close
        )
        try:
            while start < end:
                size = min(READ_BYTES, end - start)
                piece = await self._call(self._read, descriptor, size, start)
                if not piece:
                    return
                yield piece
                start += len(piece)
        finally:
            self._close_soon(descriptor)

    async def size(self, key: str) -> int | None:
        """Return an object's size, or None if it is certainly absent."""
        return await self._call(self._tree.size, key)

    def local_path(self, key: str) -> str | None:
        """Return the object's path, whether or not it is there."""
        return self._root.file(key)

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete files; durable when this returns. A cancel leaves what was not begun with.

        Nothing is stored under a key while it may be gone in a moment. Where a delete hangs that
        was left, nothing else of its directory is begun with, which would hang as well.
        """
        self._deletions = [each for each in self._deletions if not each.is_over]
        hung = {each.hangs_in() for each in self._deletions}
        outcomes: dict[str, RlmmError | None] = {
            key: _beside_one_that_hangs(key) for key in keys if directory_of(key) in hung
        }
        deletion = Deletion([key for key in keys if key not in outcomes])
        if deletion.keys:
            self._deletions.append(deletion)
            try:
                outcomes |= await self._call(self._tree.delete, deletion)
            except asyncio.CancelledError:
                deletion.give_up()
                raise
        return {key: outcomes[key] for key in keys}

    def _require_not_deleted(self, key: str) -> None:
        """Raise while a thread deletes a key: it hangs perhaps, and its caller has left."""
        if any(each.may_take(key) for each in self._deletions):
            raise StorageUnavailable(
                f"a delete of {key} has not ended yet, and would take what is stored now: copy the "
                "segment under a new id, or under this one once the disk answers",
                reason="late_delete",
                key=key,
            )

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages of at most 1,000 keys, in the file system's order."""
        pages = self._tree.objects(prefix)
        while page := await self._call(_next, pages):
            yield page

    async def list_uploads(self, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
        """Yield the temporary files of every owner, one page per attempt."""
        pages = self._tree.uploads(prefix)
        while page := await self._call(_next, pages):
            yield page

    async def abort_upload(self, upload: UploadInfo) -> None:
        """Remove the temporary files of that attempt, those of its other objects too."""
        await self._call(self._tree.abort, upload)

    async def get_control(self, key: str) -> ControlObject | None:
        """Return a small object whole."""
        return await self._call(self._tree.get_control, key)

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        """Compare and set; a lock file serialises the daemons of a shared mount."""
        for _ in range(LOCK_TRIES):
            etag = await self._call(self._tree.try_put_control, key, data, if_etag)
            if etag is not None:
                return etag
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        raise StorageUnavailable(f"another process holds the lock of {key}")

    async def overwrite_control(self, key: str, data: bytes) -> None:
        """Replace a small object, durably."""
        await self._call(self._tree.overwrite_control, key, data)

    async def probe(self, keys: Collection[str] = ()) -> ProbeResult:
        """Write, read, list and delete a canary of this owner; opened only for it, if need be.

        Directories that were made for it go again: the daemon's user may be another one.
        """
        if self._root.taken:
            return await self._probed(keys)
        made: Sequence[str] = ()
        try:
            made = await _in_time(self._call(self._tree.absent, "_rlmm", "_rlmm/probe"))
            await _in_time(self.open())
            return await self._probed(keys)
        except RlmmError as error:
            return ProbeResult(results={"open": error})
        finally:
            with contextlib.suppress(StorageUnavailable):
                await _in_time(self._call(_remove_empty, made))

    async def _probed(self, keys: Collection[str]) -> ProbeResult:
        key = f"_rlmm/probe/{self._owner}"

        async def read() -> None:
            if await self.get_control(key) is None:
                raise StorageUnavailable("the canary that was written is not there")

        async def list_canary() -> None:
            async with contextlib.aclosing(self.list(key)) as pages:
                async for _ in pages:
                    return

        async def delete() -> None:
            for error in (await self.delete([key])).values():
                if error is not None:
                    raise error

        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "write": functools.partial(self.overwrite_control, key, b"canary\n"),
            "read": read,
            "list": list_canary,
            "delete": delete,
        }
        for each in keys:
            require = functools.partial(self._tree.require_writable, each)
            steps[f"write {each}"] = functools.partial(self._call, require)
        return ProbeResult(results=await _tried_all(steps))

    async def close(self) -> None:
        """Let running calls end and free the threads."""
        for pool in (self._threads, self._calls):
            pool.close(wait=False)

    def _attempt(
        self, attempt: Attempt, objects: Sequence[tuple[ObjectKind, str, Source]]
    ) -> Sequence[StoredObject]:
        self._root.check()
        try:
            with self._root.told("copy", *(self._root.file(key) for _, key, _ in objects)):
                return attempt.run(objects)
        except FileNotFoundError as error:
            raise StorageUnavailable("the temporary area of the storage is gone") from error

    def _open_object(self, key: str) -> int:
        path = self._root.file(key)
        try:
            with self._root.told(f"open of {key}", path):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise ObjectMissing(f"{key} is not in the storage", key=key) from error

    def _close_soon(self, descriptor: int) -> None:
        """Close a file in a thread: what it lies on may be asked, and may hang."""
        try:
            self._calls.run(functools.partial(os.close, descriptor))
        except RuntimeError:  # the storage is closed, or the loop is
            os.close(descriptor)

    def _read(self, descriptor: int, size: int, start: int) -> bytes:
        with self._root.told("read"):
            return os.pread(descriptor, size, start)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short blocking call. A cancel leaves it to end by itself."""
        return await self._calls.run(functools.partial(function, *args, **kwargs))


async def _tried_all(
    steps: Mapping[str, Callable[[], Awaitable[None]]],
) -> dict[str, RlmmError | None]:
    results: dict[str, RlmmError | None] = {}
    for name, step in steps.items():
        results[name] = error = await _tried(step)
        if error is not None and error.fields.get("reason") == _HANGS:
            break  # each of the others would take as long
    late = StorageUnavailable("not tried: the storage does not answer")
    return {name: results.get(name, late) for name in steps}


async def _tried(step: Callable[[], Awaitable[None]]) -> RlmmError | None:
    try:
        await _in_time(step())
    except RlmmError as error:
        return error
    return None


async def _in_time(step: Awaitable[T]) -> T:
    """Return what a step of a probe comes to.

    Raises:
        StorageUnavailable: it hangs.
    """
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await step
    except TimeoutError as error:
        why = f"no answer in {PROBE_SECONDS:g} s: its disk or mount hangs"
        raise StorageUnavailable(why, reason=_HANGS) from error


def _beside_one_that_hangs(key: str) -> RlmmError:
    return StorageUnavailable(
        f"{key} is not deleted: a delete in its directory hangs, and nothing else there is begun "
        "with until its disk or mount answers",
        reason=_HANGS,
        key=key,
    )


def _remove_empty(directories: Sequence[str]) -> None:
    for path in reversed(directories):
        with contextlib.suppress(OSError):  # not made, or already used by somebody else
            Path(path).rmdir()


def _next(pages: Iterator[list[T]]) -> list[T] | None:
    return next(pages, None)


async def _ended(future: asyncio.Future[Sequence[StoredObject]]) -> None:
    """Wait until a thread is done with the files, however often the caller is cancelled.

    Not for ever: on a mount that hangs neither a copy's deadline nor a stop would end it.
    """
    await let_go(future)
    if future.cancelled():
        return
    error = future.exception()
    assert error is None or isinstance(error, (PassStopped, RlmmError, OSError)), error
