"""What `explain` says of removals and of what hangs, each reason brought about by its fault."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.explain import explain
from rlmm_daemon.core.verdict import Explanation
from rlmm_daemon.daemon.caller import Caller
from rlmm_daemon.daemon.facts import StorageView, collect
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.segment import SegmentState as S
from tests.simulation.cleaning import OPTIONS, CleanWorld, number_of, partition_of, run

AT = partition_of(2)
PATIENCE = OPTIONS.copy_deadline_seconds + OPTIONS.delivery_timeout_seconds
HOUR = 3600.0


async def explained(world: CleanWorld) -> Explanation:
    daemon = world.daemons[1]
    await daemon.manager.until_readable(AT, Caller.OPERATOR, 5.0)  # as `rlmm explain` does
    facts = await collect(
        daemon.manager,
        str(AT),
        AT,
        storage=StorageView(kind="local"),
        removal=daemon.cleaner.told,
    )
    return explain(facts)


async def until_said(world: CleanWorld, name: str) -> Explanation:
    """What explain says once it names this reason, as the cause or beside it."""
    said = await explained(world)
    for _ in range(600):
        if name in {said.cause, *(notice.cause for notice in said.also)}:
            return said
        await asyncio.sleep(1)
        said = await explained(world)
    raise AssertionError((name, said))


async def begun(world: CleanWorld, *, hello: bool = True, broker_id: int = 1) -> None:
    """A daemon, and a copy of `broker_id` that was cut off after the broker said hello."""
    daemon = world.daemon()
    await asyncio.sleep(3)
    daemon.manager.replace_assignment([AT], [])
    if hello:
        daemon.manager.hello_from_broker(world.clock.now_ms())
        daemon.manager.replace_assignment([AT], [])
    await asyncio.sleep(1)
    world.put(world.started(1, AT, broker_id=broker_id))
    world.place(1, AT)


async def marked(world: CleanWorld, *, gone: bool = True) -> None:
    world.finished(1, AT)
    if gone:
        world.facts.gone.add(AT.topic_id)
    world.daemon()
    await asyncio.sleep(5)
    world.mark(AT)


async def deleting(world: CleanWorld) -> None:
    world.finished(1, AT)
    world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED))
    world.daemon()
    await asyncio.sleep(5)


async def topic_exists(world: CleanWorld) -> None:
    await marked(world, gone=False)


async def topic_unproven(world: CleanWorld) -> None:
    world.facts.silent = True
    await marked(world)


async def foreign_peer(world: CleanWorld) -> None:
    world.facts.registered.add(BrokerId(2))
    world.present(2, metadata_manager="foreign")
    await marked(world)


async def bucket_away(world: CleanWorld) -> None:
    await marked(world, gone=False)
    world.objects.available = False
    world.facts.gone.add(AT.topic_id)


async def copy_runs(world: CleanWorld) -> None:
    await begun(world)


async def copy_unproven(world: CleanWorld) -> None:
    await begun(world)
    await asyncio.sleep(PATIENCE + 20)


async def copy_of_a_foreign_manager(world: CleanWorld) -> None:
    await begun(world, hello=False)
    await asyncio.sleep(PATIENCE + 20)


async def copy_of_another_broker(world: CleanWorld) -> None:
    world.facts.registered.add(BrokerId(2))
    world.present(2)
    await begun(world, broker_id=2)
    await asyncio.sleep(PATIENCE + 20)


async def delete_begun(world: CleanWorld) -> None:
    await deleting(world)


async def delete_of_another_owner(world: CleanWorld) -> None:
    world.facts.owners[number_of(AT)] = 2
    await deleting(world)
    world.daemons[1].manager.replace_assignment([AT], [])


async def held(world: CleanWorld) -> None:
    world.finished(1, AT)
    world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED, ONLY_IF_STARTED))
    world.daemon()


@pytest.mark.parametrize(
    ("fault", "name", "words", "command"),
    [
        (topic_exists, "removal_topic_exists", "its topic still exists", "kafka-topics.sh"),
        (topic_unproven, "removal_topic_unproven", "not every live broker", "rlmm status"),
        (foreign_peer, "removal_foreign_metadata_manager", "Kafka's own", "rlmm cleanup"),
        (bucket_away, "removal_failed", "tried again and again", "rlmm cleanup"),
        (copy_runs, "copy_is_live", "may be running still", "rlmm segments"),
        (copy_unproven, "copy_is_unproven", "nothing proves yet", "rlmm segments"),
        (copy_of_a_foreign_manager, "copy_is_report", "only retention", "rlmm segments"),
        (copy_of_another_broker, "copy_is_not_ours", "another broker's", "rlmm cleanup"),
        (delete_begun, "delete_is_wait", "left to the broker", "rlmm segments"),
        (delete_of_another_owner, "delete_is_not_ours", "owner's to end", "rlmm cleanup"),
        (held, "segments_held", "marked for deletion", "rlmm log repair"),
        (held, "held", "Nothing deletes what is held", "rlmm log repair"),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" in value else "",
)
def test_a_fault_is_explained_by_its_reason(
    fault: Callable[[CleanWorld], Awaitable[None]], name: str, words: str, command: str
):
    async def scenario(world: CleanWorld) -> None:
        await fault(world)
        said = await until_said(world, name)
        rows: dict[str, tuple[str, str | None]] = {said.cause: (said.sentence, said.next_command)}
        rows |= {each.cause: (each.sentence, each.next_command) for each in said.also}
        sentence, following = rows[name]
        assert words in sentence
        assert following is not None
        assert following.startswith(command)

    run(scenario)
