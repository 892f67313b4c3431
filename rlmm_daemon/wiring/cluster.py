"""The broker's cluster put together: who is asked about it, and the newest complete answer."""

import random

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import Config
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterFacts, ClusterView
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.wiring import adapters, start


class ClusterRoom:
    """Whom this daemon asks about its cluster, and what they said last."""

    def __init__(
        self, config: Config, manager: Manager, clock: SystemClock, rng: random.Random
    ) -> None:
        self._config, self._manager = config, manager
        self._client = adapters.brokers_of(config, rng)
        brokers = adapters.cluster_of(config, manager.log, self._client)
        self.controllers = adapters.controllers_of(config, brokers, clock, rng)
        self.view = ClusterView(
            self.controllers.cluster if self.controllers else brokers,
            clock,
            rng,
            broker_id=config.daemon.broker_id,
            discovers=config.assignment.mode == "discover",
            private_storage=adapters.is_private(config),
            on_answer=self._answered,
        )
        if (kafka := adapters.kafka_log_of(config, manager.log)) is not None:
            kafka.directory.on_change.append(self.view.refresh)
        if (quorum := adapters.as_quorum_log(config, manager.log)) is not None:
            quorum.on_leader.append(self.view.refresh)

    def start(self, runtime: Runtime) -> None:
        """Begin to ask, where there is somebody to ask."""
        if self._config.asks_brokers or not self._config.shares_log:
            runtime.spawn("cluster.view", start.keep_view(self.view, self._manager))
        if self._client is not None:
            runtime.on_reload("certificates for the brokers", self._reload)
        if self.controllers is not None:
            runtime.on_reload("controllers' certificates", self.controllers.reload)
            runtime.spawn("controllers", self.controllers.observer.run())

    def close(self) -> None:
        """Close the connections that are only for questions."""
        if self._client is not None:
            self._client.close()

    def _answered(self, facts: ClusterFacts) -> None:
        fleet = self._manager.fleet
        fleet.seen(partition_count=len(facts.leaders))
        if facts.tiered is not None and fleet.follow_set is not None:
            fleet.follow_set.discover(facts.tiered.replicated)

    async def _reload(self) -> None:
        assert self._client is not None, "it is reloaded where there is one"
        self._client.reload()
