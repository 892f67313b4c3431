"""The product's Kafka log; what it gives out and answers is written down for the oracles."""

import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rlmm_daemon.adapters.kafka.connection.security import Security
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.config import KafkaAdmin, KafkaClient, KafkaFetch, KafkaProducer
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import LogBatch, Told
from tests.simulation.kafka.cluster import HOST, PORT
from tests.simulation.kafka.given import Given
from tests.simulation.kafka.truth import Truth
from tests.simulation.world import Life

TOPIC = "__remote_log_metadata"
#: Virtual seconds for which a broker may go on with what is not so any more, and an answer travel.
SLACK_SECONDS = 30.0
_OPEN = Security(protocol="PLAINTEXT", tls=None, mechanism=None, username=None, password=None)


class Taken:
    """How often a value was taken for the log, and how often it was refused for good."""

    def __init__(self) -> None:
        self.taken = 0
        self.refused = 0


class TappedLog(KafkaLog):
    """The adapter unchanged, with a writer-down at its port."""

    def __init__(
        self,
        life: Life,
        config: KafkaClient,
        *,
        spawn: Callable[..., Any],
        truth: Truth,
        given: Given,
        taken: dict[tuple[int, bytes], Taken],
        on_follow: Callable[[MetadataPartition, int], None],
    ) -> None:
        super().__init__(
            config,
            clock=life.clock,
            luck=life.rng("kafka log"),
            spawn=spawn,
            load_security=lambda: _OPEN,
        )
        self._life = life
        self._truth = truth
        self._given = given
        self._taken = taken
        self._on_follow = on_follow

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record, and note what is told of it."""
        life, truth = self._life, self._truth
        counted = self._taken.setdefault((partition, value), Taken())

        def heard(outcome: int | RlmmError) -> None:
            if life.alive:
                if isinstance(outcome, int):
                    truth.told(partition, outcome, value, life.loop.time(), SLACK_SECONDS)
                elif not isinstance(outcome, OutcomeUnknown):
                    counted.refused += 1
            told(outcome)

        super().begin_append(partition, value, heard)
        counted.taken += 1

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *rest: Any, **more: Any
    ) -> AsyncGenerator[LogBatch, None]:
        """Follow, and write down what comes."""
        self._given.begin(partition, from_offset)
        self._on_follow(partition, from_offset)
        batches = super().follow(partition, from_offset, *rest, **more)
        try:
            async for batch in batches:
                self._given.take(partition, batch)
                yield batch
        finally:
            await batches.aclose()


def configuration(rng: random.Random, partitions: int) -> KafkaClient:
    """Return the adapter's configuration of one seed: small sizes, so that every path is walked."""
    return KafkaClient(
        bootstrap=tuple(f"{HOST}:{PORT + number}" for number in (1, 2, 3)),
        topic=TOPIC,
        connect_timeout_ms=2_000,
        request_timeout_ms=3_000,
        producer=KafkaProducer(
            delivery_timeout_ms=rng.choice([3_000, 20_000]),
            batch_bytes_max=rng.choice([1_024, 65_536]),
        ),
        fetch=KafkaFetch(
            max_wait_ms=500, bytes_max=rng.choice([4_096, 65_536]), request_timeout_ms=2_000
        ),
        admin=KafkaAdmin(partition_count=partitions, replication_factor=3),
    )
