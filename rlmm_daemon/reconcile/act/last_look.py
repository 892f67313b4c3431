"""Repeat of the guards' questions before each batch of deletes.

Hours lie between the two. A daemon that failed since, a log that was made anew or cut, a loss that
an operator accepted, a manifest that was restored: each of them ends or spares what was planned.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from rlmm_daemon.config import Config
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act import evidence, quarantine
from rlmm_daemon.reconcile.act.quarantine import Manifest
from rlmm_daemon.reconcile.errors import Refused
from rlmm_daemon.reconcile.judge import guards
from rlmm_daemon.reconcile.read import log_reading
from rlmm_daemon.reconcile.read.log_reading import LogView


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is true right now."""

    log: LogView
    manifests: Mapping[str, Manifest]


class LastLook:
    """Looks at storage and log for a run that is about to delete."""

    def __init__(self, daemon: Config, storage: RemoteStorage, *, started_ms: int) -> None:
        """`started_ms` is when the run began: of losses accepted before it, its plan knows."""
        self._daemon, self._storage, self._started_ms = daemon, storage, started_ms
        self._manifests = quarantine.Manifests(storage)

    async def __call__(self) -> Seen:
        """Return what is true now.

        Raises:
            Refused: nothing more may be deleted.
            Malformed: the marker is damaged.
            Incomplete: the log did not answer.
        """
        marker = await control.read_marker(self._storage)
        marker_ms = await control.marker_ms(self._storage)
        presences = await control.read_presences(self._storage)
        manifests, damaged = await self._manifests.look()
        # Behind the presence files: no daemon can have told of more than is in the log by now.
        log = await asyncio.to_thread(log_reading.view, self._daemon)
        pairs = evidence.epochs_of(presences, log)
        shown = guards.Evidence(
            marker=marker,
            marker_ms=marker_ms,
            cluster_id=log.identity.cluster_id or self._daemon.daemon.cluster_id,
            log=log,
            read={},
            presences=presences,
            damaged=tuple(damaged.values()),
            epoch_ends=await asyncio.to_thread(log_reading.epoch_ends, self._daemon, pairs),
        )
        if reasons := guards.still(shown, self._started_ms - guards.SKEW_MS):
            raise Refused(reasons)
        return Seen(log=log, manifests=manifests)
