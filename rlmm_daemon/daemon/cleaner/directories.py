"""Topic ids that the broker's disks carry: `partition.metadata` below each of its `log_dirs`.

A directory that is being deleted (`*-delete`) counts too: its topic was there a moment ago. Where a
broker's disk is not mounted its log directory is there, and empty: what Kafka keeps in each of them
tells the two apart.
"""

from collections.abc import Sequence
from typing import Final

from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import TopicId, uuid_bytes
from rlmm_daemon.ports.disk import Disk

FILE: Final = "partition.metadata"
#: In every log directory of a broker, from before its first partition on.
BROKERS_OWN: Final = "meta.properties"
_KEY: Final = "topic_id:"


async def topic_ids_on_disk(disk: Disk, log_dirs: Sequence[str]) -> frozenset[TopicId]:
    """Return the topic ids of every partition directory.

    Raises:
        StorageUnavailable: a directory or a file cannot be read, or a directory is no broker's:
            nothing is known to be absent.
    """
    found: set[TopicId] = set()
    for log_dir in log_dirs:
        try:
            names = await disk.list(log_dir)
            if BROKERS_OWN not in names:
                raise StorageUnavailable(
                    f"{log_dir} has no {BROKERS_OWN}: it is no broker's log directory, or its disk "
                    "is not mounted"
                )
            for name in names:
                data = await _read(disk, f"{log_dir}/{name}/{FILE}")
                if data is not None:
                    found.add(_topic_id(data))
        except (OSError, InvalidArgument, UnicodeDecodeError) as error:
            raise StorageUnavailable(
                f"the broker's {log_dir} could not be read: {error}"
            ) from error
    return frozenset(found)


async def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return await disk.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # a checkpoint file, or a directory of no partition


def _topic_id(data: bytes) -> TopicId:
    for line in data.decode("ascii").splitlines():
        if line.startswith(_KEY):
            return TopicId(uuid_bytes(line.removeprefix(_KEY).strip()))
    raise InvalidArgument(f"a {FILE} names no topic id")
