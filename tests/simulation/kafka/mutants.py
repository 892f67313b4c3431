"""Planted bugs that the simulation over Kafka must find: of its adapter, and of what trusts it.

That a raised count of partitions is passed over met one seed in a thousand, and is seen by
`metadata/test_previous_state.py`.
"""

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutants import Mutant

_SCENARIO: Final = "kafka"

MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="epoch_of_the_fold_forgotten_at_connect",
        module="rlmm_daemon.adapters.kafka.event_log.fetcher",
        old="        self.epoch = epoch if position > 0 else NO_EPOCH\n",
        new="        self.epoch = NO_EPOCH\n",
        seeds=60,
        scenario=_SCENARIO,
        first=81,
    ),
    Mutant(
        name="positions_of_an_earlier_life_believed",
        module="rlmm_daemon.daemon.following.follower",
        old="                    confirmed=await self._confirmed(position),\n",
        new="                    confirmed=True,\n",
        seeds=40,
        scenario=_SCENARIO,
        first=76,
    ),
    Mutant(
        name="dropped_fold_not_written_down",
        module="rlmm_daemon.daemon.following.follower",
        old="                    whole = await self.history.drop("
        "self.fold, order.why, same_log=order.same_log)\n",
        new="                    pass\n",
        seeds=20,
        scenario=_SCENARIO,
        first=18,
    ),
    Mutant(
        name="trimmed_head_skipped",
        module="rlmm_daemon.adapters.kafka.event_log.fetcher",
        old="            return LogTrimmed(known.start)\n",
        new="            self.position = known.start\n            return _Trouble(error)\n",
        seeds=20,
        scenario=_SCENARIO,
        first=12,
    ),
    Mutant(
        name="gap_swallowed",
        module="rlmm_daemon.adapters.kafka.event_log.fetcher",
        old="            unvouched=part.unvouched,\n",
        new="",
        seeds=20,
        scenario=_SCENARIO,
        first=22,
    ),
    Mutant(
        name="perhaps_written_called_written",
        module="rlmm_daemon.adapters.kafka.event_log.producer",
        old="            batch.maybe_written = True\n            return error\n",
        new="            lane.written(0)\n            return None\n",
        seeds=10,
        scenario=_SCENARIO,
        first=3,
    ),
    Mutant(
        name="sequence_used_again",
        module="rlmm_daemon.adapters.kafka.event_log.lane",
        old="        self.sequence = (self.sequence + len(batch.entries)) % _SEQUENCES\n",
        new="",
        seeds=10,
        scenario=_SCENARIO,
    ),
    Mutant(
        name="another_producer_for_each_attempt",
        module="rlmm_daemon.adapters.kafka.event_log.lane",
        old="        if self.batch is None and self.waiting:\n",
        new=(
            "        if self.batch is not None:\n"
            "            self.sequence += 1\n"
            "            self.batch.data = self._encode(\n"
            "                self.batch.entries, ProducerIdentity(1 << 40, 0), now_ms)\n"
            "        if self.batch is None and self.waiting:\n"
        ),
        seeds=20,
        scenario=_SCENARIO,
        first=10,
    ),
    Mutant(
        name="position_stays_before_a_control_batch",
        module="rlmm_daemon.adapters.kafka.event_log.parsing",
        old="            position, epoch = one.after, one.epoch\n",
        new="            position, epoch = position if one.is_control else one.after, one.epoch\n",
        seeds=10,
        scenario=_SCENARIO,
        first=5,
    ),
    Mutant(
        name="beginning_taken_for_the_end",
        module="rlmm_daemon.adapters.kafka.event_log.asking",
        old="            partition: LogRange(start=first[partition], end=last[partition])\n",
        new="            partition: LogRange(start=first[partition], end=first[partition])\n",
        seeds=10,
        scenario=_SCENARIO,
        first=1,
    ),
    Mutant(
        name="partition_left_while_its_history_is_written",
        module="rlmm_daemon.daemon.following.fleet",
        old="            busy = follower.writer.in_flight or follower.dropping\n",
        new="            busy = follower.writer.in_flight\n",
        seeds=1,
        scenario=_SCENARIO,
        first=601,
    ),
    Mutant(  # an effect out of order
        name="position_forgotten_before_its_fold_is_written_down",
        module="rlmm_daemon.core.readiness.following",
        old="    effects = (RestartTargets(), *first, drop)\n",
        new="    effects = (RestartTargets(), ForgetPosition(), *first, drop)\n",
        seeds=2,
        scenario=_SCENARIO,
        first=290,
    ),
)
