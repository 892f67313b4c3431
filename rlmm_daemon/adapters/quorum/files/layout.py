"""Names of a replica's files, and their common refusals."""

import re
from contextlib import suppress
from typing import Final

import msgspec

from rlmm_daemon.codec.kraft import checkpoint, small_files
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import HistoryLost, LogCorrupt
from rlmm_daemon.ports.disk import Disk

#: A snapshot that is on the disk, and takes the place of the log that is still there.
INSTALLING_SUFFIX: Final = ".checkpoint.installing"
#: What an operator does who has no copy of the files.
ANEW: Final = (
    "put this directory back as it was, or format it anew (it gets another directory id), remove "
    "the old voter from the quorum and add the new one"
)
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_LEFT_OVER: Final = re.compile(r".*\.(tmp\d*|part|deleted)")


class Layout(msgspec.Struct, frozen=True):
    """Where everything of a replica is."""

    directory: str
    topic: str

    @property
    def log(self) -> str:
        """The directory of the log and all that belongs to it."""
        return f"{self.directory}/{self.topic}-0"

    @property
    def lock(self) -> str:
        """A file that one process at a time locks."""
        return f"{self.directory}/.lock"

    @property
    def meta(self) -> str:
        """Whose directory it is; written last when it is formatted."""
        return f"{self.directory}/{small_files.META_PROPERTIES}"

    @property
    def recovery_point(self) -> str:
        """Up to where the log is known to be on the disk."""
        return f"{self.directory}/recovery-point-offset-checkpoint"

    @property
    def log_start(self) -> str:
        """Where the log begins."""
        return f"{self.directory}/log-start-offset-checkpoint"

    @property
    def quorum_state(self) -> str:
        """Epoch, leader and vote."""
        return f"{self.log}/quorum-state"

    @property
    def partition(self) -> str:
        """The topic's id; where it is, log and quorum-state have to be."""
        return f"{self.log}/{small_files.PARTITION_METADATA}"

    @property
    def epochs(self) -> str:
        """Where each epoch of the log begins."""
        return f"{self.log}/leader-epoch-checkpoint"

    def segment(self, base: int) -> str:
        """Return the path of the file that begins with this offset."""
        return f"{self.log}/{base:020}.log"

    def snapshot(self, point: LogPoint) -> str:
        """Return the path of a whole snapshot."""
        return f"{self.log}/{checkpoint.name(point)}"

    def part(self, point: LogPoint) -> str:
        """Return the path of a snapshot of which only a part is there."""
        return f"{self.snapshot(point)}.part"

    def installing(self, point: LogPoint) -> str:
        """Return the path of a snapshot that takes the log's place."""
        return f"{self.snapshot(point)}.installing"


class Names(msgspec.Struct, frozen=True):
    """What is in the log's directory: files of the log, snapshots, and one that takes its place."""

    segments: list[int]
    snapshots: list[LogPoint]
    installing: LogPoint | None


async def names(disk: Disk, layout: Layout) -> Names:
    """Return what is there, each in ascending order; nothing of a directory that is not there."""
    try:
        found = await disk.list(layout.log)
    except FileNotFoundError:
        found = []
    segments = (_SEGMENT.fullmatch(name) for name in found)
    points = (checkpoint.parse_name(name) for name in found)
    marked = (
        checkpoint.parse_name(name.removesuffix(".installing"))
        for name in found
        if name.endswith(INSTALLING_SUFFIX)
    )
    return Names(
        segments=sorted(int(match[1]) for match in segments if match),
        snapshots=sorted(point for point in points if point is not None),
        installing=max((point for point in marked if point is not None), default=None),
    )


async def sweep(disk: Disk, layout: Layout) -> None:
    """Remove what a crash left of files that were never whole; what can't be only takes room."""
    for directory in (layout.directory, layout.log):
        with suppress(FileNotFoundError):
            for name in sorted(await disk.list(directory)):
                if _LEFT_OVER.fullmatch(name):
                    with suppress(OSError):
                        await disk.remove(f"{directory}/{name}")


def damaged(path: str, reason: str, *, do: str = ANEW) -> LogCorrupt:
    """Return the refusal of a file that does not hold."""
    return LogCorrupt(f"{path}: {reason}; {do}", file=path, reason=reason)


def lost(path: str, reason: str) -> HistoryLost:
    """Return the refusal of a replica that lacks what it may have acknowledged."""
    return HistoryLost(f"{path}: {reason}; {ANEW}", file=path, reason=reason)
