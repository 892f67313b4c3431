"""Presence files of all daemons: those that a listing shows; where it is denied, those by name."""

from collections.abc import Callable, Collection
from contextlib import aclosing

import structlog
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import CONTROL_MS_MAX, Presence
from rlmm_daemon.daemon.bucket.bucket import PresenceFiles
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import RemoteStorage

log = structlog.get_logger()


async def present(storage: RemoteStorage) -> PresenceFiles:
    """Return what each daemon says of itself.

    Each is said to be written when the storage took it: its daemon's clock may be wrong. What else
    lies beside the files, as consoles and people put it there, is nobody's word.

    Raises:
        StorageUnavailable: not all of them could be asked for.
    """
    async with aclosing(storage.list(marker.PRESENCE_PREFIX)) as pages:
        rows = [row async for page in pages for row in page]
    found, unread = list[Presence](), dict[str, int]()
    for row in rows:
        try:
            control = await storage.get_control(row.key)
            if control is not None:
                said = marker.decode_presence(control.data)
                found.append(replace(said, written_at_ms=row.modified_ms))
        except Malformed:  # newer, damaged or too large
            if marker.is_presence_key(row.key):
                unread[row.key] = row.modified_ms
    return PresenceFiles(told=found, unread=unread)


class PresenceReader:
    """Asks for what each daemon says of itself, and keeps why some may not be seen."""

    def __init__(self, storage: RemoteStorage, broker_id: int) -> None:
        self._storage, self._broker_id = storage, broker_id
        #: Brokers of the cluster, for a bucket that lets nobody list; None: not known yet. Without
        #: somebody to ask there are none.
        self.named: Callable[[], Collection[int] | None] = tuple
        #: Why files may be there that were not seen, by the last look; None: all were.
        self.unseen: str | None = None

    async def read(self) -> PresenceFiles:
        """Return what each daemon says of itself, as far as the storage lets us see that.

        Raises:
            StorageUnavailable: nobody can say now.
        """
        try:
            files = await present(self._storage)
        except StorageUnavailable as error:
            if error.fields.get("retry") is not False:
                raise
            return await self._by_name(error)
        self._tell(None)
        return files

    async def read_named(self) -> PresenceFiles:
        """Return what `read` does, once the cluster has named its brokers where they are asked for.

        Raises:
            StorageUnavailable: nobody can say now.
        """
        files = await self.read()
        if files.unnamed is not None:
            raise StorageUnavailable(files.unnamed)
        return files

    async def _by_name(self, denied: StorageUnavailable) -> PresenceFiles:
        """Read the files of brokers that are named: a GET needs no listing."""
        brokers = self.named()
        found, unread, refused = list[Presence](), dict[str, int](), list[str]()
        for broker_id in sorted({self._broker_id, *(brokers or ())}):
            key, stored_ms = marker.presence_key(broker_id), None
            try:
                control = await self._storage.get_control(key)
                if control is not None:
                    stored_ms = control.modified_ms
                    said = marker.decode_presence(control.data)
                    at_ms = said.written_at_ms if stored_ms is None else stored_ms
                    found.append(replace(said, written_at_ms=at_ms))
            except Malformed:
                unread[key] = CONTROL_MS_MAX if stored_ms is None else stored_ms
            except StorageUnavailable as error:
                if error.fields.get("reason") != "denied":
                    raise  # a wrong clock, say: it says nothing about a file
                refused.append(key)  # S3 says so of one that is not there
        why = f"{marker.PRESENCE_PREFIX} can't be listed ({denied.message})"
        unnamed = None
        if brokers is None:
            unnamed = f"{why}, and the cluster has not said yet which brokers it has"
        self._tell(unnamed or _unseen(why, brokers or (), refused))
        return PresenceFiles(told=found, unread=unread, unnamed=unnamed)

    def _tell(self, unseen: str | None) -> None:
        if unseen is not None and unseen != self.unseen:  # once, however long it lasts
            log.warning("what other daemons have read is not known", error=unseen)
        self.unseen = unseen


def _unseen(why: str, brokers: Collection[int], refused: Collection[str]) -> str:
    """Return what is not seen of daemons, and what ends that."""
    read = f"of {len(brokers)} brokers that the cluster names" if brokers else "of no other broker"
    besides = f", of which {', '.join(refused)} can't be read or are not there" if refused else ""
    return (
        f"{why}: presence files {read} are read{besides}; what daemons of others had read of the "
        "event log is not known, and its loss would go unnoticed. Allow the listing: "
        "rlmm storage doctor"
    )
