"""The state directory: what this daemon knows besides the log, in files that a crash leaves whole.

    lock                      held while a daemon runs
    identity.json             the log it belongs to, fixed at first contact
    announced.json            the last announcement, to warm after a restart
    positions.json            how far each metadata partition was read
    accepted.json             gaps in the log whose loss was accepted
    marker.json               the bucket's marker as last seen in order
    owed-marker.json          what was accepted while the bucket had no marker, until one has it
    other-daemon.txt          the daemon of this broker id that was met, until it was silent
    observed.json             topic ids that the cluster was heard to know (cleaner.observe)
    paused.json               topics of which no copy begins (rlmm pause)
    snapshots/N-G.snapshot    a fold of metadata partition N, generation G
    N.lost                    segments that a dropped fold knew and the log may have lost

The log is the truth: deleting `snapshots/`, `positions.json` and `announced.json` costs a replay
and loses nothing. `marker.json` is what a lost marker is rebuilt from. An embedded log lies below
this directory, too, by default.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from crc32c import crc32c

from rlmm_daemon.codec.state_files import (
    AcceptedFile,
    Announced,
    Identity,
    JsonFile,
    Lost,
    Observed,
    Paused,
    Position,
    Positions,
    from_json,
    lost_from,
    lost_head,
    lost_pieces,
    marker_from,
    marker_json,
    to_json,
)
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.os_errors import named
from rlmm_daemon.domain.errors import CorruptError, InTheWay, RefusedError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.disk import Disk, DiskLock

LOCK: Final = "lock"
IDENTITY: Final = "identity.json"
ANNOUNCED: Final = "announced.json"
POSITIONS: Final = "positions.json"
ACCEPTED: Final = "accepted.json"
OBSERVED: Final = "observed.json"
PAUSED: Final = "paused.json"
MARKER: Final = "marker.json"
OWED_MARKER: Final = "owed-marker.json"
OTHER_DAEMON: Final = "other-daemon.txt"
SNAPSHOTS: Final = "snapshots"
LOST_SUFFIX: Final = ".lost"
_FILES: Final = {
    Identity: IDENTITY,
    Positions: POSITIONS,
    AcceptedFile: ACCEPTED,
    Observed: OBSERVED,
    Paused: PAUSED,
}


class StateDirectory:
    """Reads and writes the files; every write is atomic and durable when it returns."""

    def __init__(self, disk: Disk, path: str, turns: FairScheduler | None = None) -> None:
        self.turns = turns or FairScheduler()
        self.disk = disk
        self.path = path
        self._lock: DiskLock | None = None

    async def open(self) -> None:
        """Make the directory and take its lock.

        Raises:
            InTheWay: another daemon holds it, perhaps one that is killed and whose disk hangs.
        """
        await self.disk.make_directory(self.snapshots)
        try:
            self._lock = await self.disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError as error:
            raise InTheWay(
                f"another daemon uses the state directory {self.path}; give each its own",
                path=self.path,
                look="rlmm doctor names that process; while both are started, this one ends again",
            ) from error

    async def close(self) -> None:
        """Release the lock; idempotent."""
        if self._lock is not None:
            await self._lock.release()
            self._lock = None

    @property
    def snapshots(self) -> str:
        """The directory of the snapshots."""
        return f"{self.path}/{SNAPSHOTS}"

    async def _read(self, name: str) -> bytes | None:
        try:
            return await self.disk.read(f"{self.path}/{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise named(error, f"{self.path}/{name}") from error

    async def _known(self, name: str, kind: type[JsonFile]) -> JsonFile | None:
        data = await self._read(name)
        return None if data is None else from_json(data, kind, name)

    async def identity(self) -> Identity | None:
        """Return the log's identity of earlier starts; None on a fresh directory."""
        return await self._known(IDENTITY, Identity)

    async def write(self, known: Identity | Positions | AcceptedFile | Observed | Paused) -> None:
        """Replace what was known, in the file of its kind."""
        await self.disk.write_atomically(f"{self.path}/{_FILES[type(known)]}", to_json(known))

    async def announced(self) -> Announced | None:
        """Return the last announcement."""
        return await self._known(ANNOUNCED, Announced)

    async def write_announced(self, pieces: Sequence[bytes]) -> None:
        """Replace the last announcement (`state_files.announced_json`)."""
        await self.disk.write_atomically(f"{self.path}/{ANNOUNCED}", *pieces)

    async def positions(self) -> Positions | None:
        """Return how far each metadata partition was read before."""
        return await self._known(POSITIONS, Positions)

    async def accepted(self) -> AcceptedFile | None:
        """Return which gaps were accepted before."""
        return await self._known(ACCEPTED, AcceptedFile)

    async def observed(self) -> Observed | None:
        """Return which topic ids were heard of before."""
        return await self._known(OBSERVED, Observed)

    async def paused(self) -> Paused | None:
        """Return which topics are paused; None if none ever was."""
        return await self._known(PAUSED, Paused)

    async def marker(self) -> bytes | None:
        """Return the copy of the bucket's marker, as the bucket had it.

        Raises:
            Malformed: its checksum does not hold.
        """
        data = await self._read(MARKER)
        return None if data is None else marker_from(data, MARKER)

    async def write_marker(self, data: bytes) -> None:
        """Replace it."""
        await self.disk.write_atomically(f"{self.path}/{MARKER}", marker_json(data))

    async def owed_marker(self) -> bytes | None:
        """Return a marker with what was accepted while the bucket had none; None if nothing was."""
        return await self._read(OWED_MARKER)

    async def write_owed_marker(self, data: bytes | None) -> None:
        """Replace it; None: nothing is owed any more."""
        if data is None:
            await self._remove(OWED_MARKER)
        else:
            await self.disk.write_atomically(f"{self.path}/{OWED_MARKER}", data)

    async def other_daemon(self) -> str | None:
        """Return who was met under this broker id and was not silent since; None if nobody was."""
        data = await self._read(OTHER_DAEMON)
        return None if data is None else data.decode("utf-8", "replace")

    async def note_other_daemon(self, who: str | None) -> None:
        """Replace it; None: it was silent since."""
        if who is None:
            await self._remove(OTHER_DAEMON)
        else:
            await self.disk.write_atomically(f"{self.path}/{OTHER_DAEMON}", who.encode())

    async def lost(self, partition: MetadataPartition) -> Lost | None:
        """Return what a dropped fold of this partition knew, if it was not found again yet."""
        name = _lost_name(partition)
        data = await self._read(name)
        return None if data is None else lost_from(data, name)

    async def write_lost(self, lost: Lost, records: Iterable[bytes], count: int) -> None:
        """Replace the list; merging with an earlier one is the caller's duty."""
        pieces, crc = list[bytes](), 0
        for piece in lost_pieces(lost, records, count):
            pieces.append(piece)  # joined they would be moved as they grow, and freed at once
            crc = crc32c(piece, crc)
            await self.turns.wait()  # there can be a million
        name = _lost_name(lost.metadata_partition)
        await self.disk.write_atomically(f"{self.path}/{name}", lost_head(crc), *pieces)

    async def remove_all_lost(self) -> None:
        """Forget every list, durably."""
        for name in await self.disk.list(self.path):
            if name.endswith(LOST_SUFFIX):
                await self.disk.remove(f"{self.path}/{name}")
        await self.disk.fsync_directory(self.path)

    async def remove_lost(self, partition: MetadataPartition) -> None:
        """Forget the list, durably; absent is fine."""
        await self._remove(_lost_name(partition))

    async def _remove(self, name: str) -> None:
        try:
            await self.disk.remove(f"{self.path}/{name}")
        except FileNotFoundError:
            return
        await self.disk.fsync_directory(self.path)


async def listed(state: StateDirectory) -> dict[int, Sequence[Position]]:
    """Return how far dropped folds had read whose lists are there and can be read."""
    found = dict[int, Sequence[Position]]()
    with suppress(OSError):
        for name in await state.disk.list(state.path):
            number = name.removesuffix(LOST_SUFFIX)
            if number != name and number.isdecimal():
                with suppress(OSError, CorruptError, RefusedError):  # told when it is followed
                    lost = await state.lost(MetadataPartition(int(number)))
                    found[int(number)] = () if lost is None else lost.read
    return found


def _lost_name(partition: int) -> str:
    return f"{partition}{LOST_SUFFIX}"
