"""The cleaner's room put together: cleaner, observer, their report, and proof of what is gone."""

import random
from functools import cache

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.config import Config
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterView
from rlmm_daemon.daemon.cleaner.observer import WATCHED_BY_OWNER_OF, Observer
from rlmm_daemon.daemon.cleaner.peers import NoPeers, PresentPeers
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof, ClusterProof, TopicProof
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.wiring.adapters import Storage
from rlmm_daemon.wiring.options import cleaner_options_of, observer_options_of


class CleanerRoom:
    """Of a daemon with a storage: metadata alone leaves nothing to clean."""

    def __init__(
        self,
        config: Config,
        manager: Manager,
        view: ClusterView,
        *,
        storage: Storage,
        copier: Copier,
        proof: TopicProof,
        clock: SystemClock,
        rng: random.Random,
    ) -> None:
        shared = config.shares_log
        options = cleaner_options_of(config)

        def owned() -> frozenset[MetadataPartition] | None:
            if shared:
                return view.owned_within(options.view_seconds_max)
            identity = manager.fleet.identity
            return _first(identity.partition_count if identity else 0)

        self.cleaner = cleaner = Cleaner(
            manager=manager,
            bucket=storage.bucket,
            copier=copier,
            proof=proof,
            peers=PresentPeers(view.cluster, storage.backend, cluster_id=config.daemon.cluster_id)
            if shared
            else NoPeers(config.daemon.broker_id),
            owned=owned,
            options=options,
            broker_id=config.daemon.broker_id,
            clock=clock,
            rng=rng,
        )
        #: Marks what nobody asked for; off unless configured.
        self.observer: Observer | None = None
        if config.cleaner.observe.enabled:
            self.observer = Observer(
                manager=manager,
                cluster=view.cluster,
                log_dirs=config.daemon.log_dirs,
                broker_id=config.daemon.broker_id,
                watches=lambda: cleaner.owns(WATCHED_BY_OWNER_OF),
                options=observer_options_of(config),
            )
        self.report = Report(
            cleaner,
            leader_of=lambda number: view.facts.leaders.get(number) if view.facts else None,
            observer=self.observer,
        )

    def start(self, runtime: Runtime) -> None:
        """Begin to clean, and to observe where that is asked for."""
        runtime.spawn("cleaner", self.cleaner.run())
        if self.observer is not None:
            runtime.spawn("cleaner.observer", self.observer.run())


@cache
def _first(count: int) -> frozenset[MetadataPartition]:
    return frozenset(map(MetadataPartition, range(count)))


def proof_of(config: Config, manager: Manager, view: ClusterView, disk: LocalDisk) -> TopicProof:
    """Return who proves that a topic is gone."""
    if config.shares_log:
        return ClusterProof(view.cluster, manager.assignment)
    return AnnouncedProof(manager.assignment, disk, config.daemon.log_dirs)
