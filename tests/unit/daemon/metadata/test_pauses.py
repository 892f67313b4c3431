"""A topic that is paused: no copy of it begins, whatever happens to the daemon meanwhile."""

import asyncio
from pathlib import Path

import pytest

from rlmm_daemon.core.explain.notices import PAUSE_SECONDS_MAX
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.state_directory import PAUSED
from rlmm_daemon.daemon.metadata.pauses import Pauses
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.errors import ConfigError, CopiesPaused, InvalidArgument, StorageFull
from rlmm_daemon.domain.ids import uuid_text
from tests.unit.daemon.events import TP, of, started, until, updated

BROKER = Caller.BROKER


async def announced(manager) -> Operator:
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))
    return Operator(manager)


def read(rig) -> bytes:
    return Path(rig.directory, "a", PAUSED).read_bytes()


def write(rig, content: bytes) -> None:
    Path(rig.directory, "a", PAUSED).write_bytes(content)


async def test_no_copy_begins_until_it_is_resumed_and_what_has_begun_ends(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        await operator.topic_pause(TP.topic, execute=True)
        follower = manager.fleet.followers[of(TP)]
        position = follower.fold.position
        for caller in Caller:
            with pytest.raises(CopiesPaused, match="rlmm resume"):
                await manager.events.add(started(2, 10, 19), caller)
        with pytest.raises(CopiesPaused):
            manager.events.begin_add(started(2, 10, 19), 30.0, lambda _: None)
        (end,) = (await manager.log.end_offsets([of(TP)])).values()
        assert end.end == position, "nothing was written"
        assert manager.pauses.refused == 1 + len(Caller)
        await manager.events.update(updated(1), BROKER)
        await operator.topic_resume(TP.topic, execute=True)
        await manager.events.add(started(2, 10, 19), BROKER)


async def test_another_topic_goes_on(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        await operator.topic_pause(f"{TP.topic}2", execute=True)
        await manager.events.add(started(1, 0, 9), BROKER)


async def test_nothing_is_done_without_a_yes(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        said = await operator.topic_pause(TP.topic, execute=False)
        assert (said["executed"], said["leads"], said["paused"]) == (False, 1, [])
        await manager.events.add(started(1, 0, 9), BROKER)
        await operator.topic_pause(TP.topic, execute=True)
        said = await operator.topic_resume(TP.topic, execute=False)
        assert [each["topic"] for each in said["paused"]] == [TP.topic]
        with pytest.raises(CopiesPaused):
            await manager.events.add(started(2, 10, 19), BROKER)


async def test_it_goes_by_the_name_which_is_found_by_the_id_too(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        said = await operator.topic_pause(uuid_text(TP.topic_id), execute=True)
        assert (said["topic"], said["partitions"]) == (TP.topic, 1)
        assert manager.pauses.since_ms(TP.topic) is not None
        said = await operator.topic_pause("nobodys", execute=False)
        assert (said["topic"], said["partitions"]) == ("nobodys", 0)
        with pytest.raises(InvalidArgument, match="no topic name"):
            await operator.topic_pause("a/b", execute=True)


async def test_it_is_there_after_a_restart_since_when_it_was(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        await operator.topic_pause(TP.topic, execute=True)
        since_ms = manager.pauses.since_ms(TP.topic)
    async with rig.manager() as manager:
        operator = await announced(manager)
        with pytest.raises(CopiesPaused):
            await manager.events.add(started(1, 0, 9), BROKER)
        said = await operator.topic_pause(TP.topic, execute=True)
        assert said["paused"] == [{"topic": TP.topic, "since_ms": since_ms}]
        await operator.topic_resume(TP.topic, execute=True)
    async with rig.manager() as manager:
        await announced(manager)
        await manager.events.add(started(1, 0, 9), BROKER)


async def test_status_and_explain_tell_of_it(rig):
    async with rig.manager() as manager:
        operator, standing = await announced(manager), Standing(manager)
        await operator.topic_pause(TP.topic, execute=True)
        (row,) = (await standing.status())["paused"]["topics"]
        assert row["topic"] == TP.topic
        told = await standing.explain(str(TP))
        (notice,) = [each for each in told["also"] if each["cause"] == "copies_paused"]
        assert notice["next_command"] == f"rlmm resume {TP.topic}"
        assert (told["trouble"], notice["trouble"]) == (False, False), "it was ordered"


async def test_one_that_was_perhaps_forgotten_is_called_trouble(rig, monkeypatch):
    async with rig.manager() as manager:
        operator, standing = await announced(manager), Standing(manager)
        then_ms = manager.clock.now_ms() - PAUSE_SECONDS_MAX * 1000 - 1
        monkeypatch.setattr(manager.pauses, "_now_ms", lambda: then_ms)
        await operator.topic_pause(TP.topic, execute=True)
        told = await standing.explain(str(TP))
        assert told["trouble"]
        causes = {each["cause"]: each["next_command"] for each in told["also"]}
        assert causes["pause_forgotten"] == f"rlmm resume {TP.topic}"
        assert "copies_paused" not in causes


async def test_where_nobody_can_tell_what_is_paused_no_copy_begins(rig):
    async with rig.manager() as manager:
        await (await announced(manager)).topic_pause(TP.topic, execute=True)
    write(rig, read(rig).replace(TP.topic.encode(), TP.topic.upper().encode()))
    async with rig.manager() as manager:
        operator, standing = await announced(manager), Standing(manager)
        with pytest.raises(CopiesPaused, match="damaged"):
            await manager.events.add(started(1, 0, 9), BROKER)
        told = await standing.explain(str(TP))
        assert "pauses_unknown" in [each["cause"] for each in told["also"]]
        assert (await standing.status())["paused"]["trouble"]
        said = await operator.topic_resume(TP.topic, execute=True)
        assert "damaged" in said["trouble"], "what else was paused is not known any more"
        await manager.events.add(started(1, 0, 9), BROKER)
    async with rig.manager() as manager:
        await announced(manager)
        assert manager.pauses.trouble is None


async def test_a_newer_daemons_pauses_are_left_untouched(rig):
    async with rig.manager() as manager:
        await announced(manager)
    write(rig, b'{"format": 9}')
    with pytest.raises(ConfigError, match="newer"):
        await Pauses(manager.state, lambda: 0).load()
    assert read(rig) == b'{"format": 9}'


async def test_an_order_that_could_not_be_written_down_changes_nothing(rig, monkeypatch):
    async with rig.manager() as manager:
        operator = await announced(manager)

        async def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(manager.state, "write", full)
            with pytest.raises(StorageFull):
                await operator.topic_pause(TP.topic, execute=True)
        assert not manager.pauses.rows()


async def test_two_orders_at_once_are_both_kept(rig):
    async with rig.manager() as manager:
        operator = await announced(manager)
        async with asyncio.TaskGroup() as group:
            for topic in ("one", "two"):
                group.create_task(operator.topic_pause(topic, execute=True))
        assert [each.topic for each in manager.pauses.rows()] == ["one", "two"]
        kept = await manager.state.paused()
        assert kept is not None
        assert sorted(each.topic for each in kept.topics) == ["one", "two"]
