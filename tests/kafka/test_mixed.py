"""A broker with Kafka's own manager and one with this daemon share the topic."""

import asyncio

from rlmm_daemon.daemon.base.caller import Caller
from tests.kafka.probe import user
from tests.kafka.rig import BROKER, COUNT, Writer, serving, tp_in, until
from tests.unit.daemon import events


async def test_both_managers_see_what_the_other_writes_byte_for_byte(rig, tmp_path):
    rig.topic = "__remote_log_metadata"  # a constant of Kafka's manager
    tp = tp_in(0)
    where = {"count": COUNT, "replicas": rig.replicas, "directory": str(tmp_path)}
    await asyncio.to_thread(rig.probe.ask, "manager", user=user(tp), **where)
    try:
        async with rig.manager() as manager:
            await serving(manager, tp)
            writer = Writer(manager, tp)
            for number in range(3):
                await writer.copy(number)
            for number in range(3, 6):
                begin = number * 10
                put = events.started(number, begin, begin + 9, tp), events.updated(number, tp=tp)
                for value in put:
                    await asyncio.to_thread(rig.probe.ask, "put", hex=value.hex())
            await until(lambda: len(ours(manager, tp)) == 6)
            await until(lambda: len(rig.probe.list(tp)) == 6)
            assert ours(manager, tp) == sorted(rig.probe.list(tp))
            theirs = rig.probe.ask("lookup", user=user(tp), epoch=0, offset=45)["hex"]
            found = manager.lookups.remote_log_segment_metadata(tp, 0, 45, Caller.BROKER)
            assert found is not None
            assert found.hex() == theirs
    finally:
        await asyncio.to_thread(rig.probe.ask, "manager_close")


def ours(manager, tp) -> list[bytes]:
    return sorted(manager.lookups.list_remote_log_segments(tp, None, BROKER))
