"""Heartbeats of a replica that is behind: who is told that nothing is new has all there was."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.ports.event_log import NO_EPOCH
from tests.contract.event_log import P0, first, read
from tests.unit.adapters.quorum.event_log.test_checkpoints import deaf, filled, overtake, two
from tests.unit.adapters.quorum.event_log.test_log import beats, until


def hold(patch: pytest.MonkeyPatch, of: type, name: str) -> asyncio.Event:
    """Keep a method waiting until the event that is returned."""
    goes_on, method = asyncio.Event(), getattr(of, name)

    async def held(*args: Any) -> Any:
        await goes_on.wait()
        return await method(*args)

    patch.setattr(of, name, held)
    return goes_on


async def test_a_replica_that_has_not_folded_what_is_committed_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (log, late):
        async with aclosing(late.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            assert await beats(batches, seconds=1) == 100
            catch_up = Folding._catch_up

            async def held(folding: Folding) -> None:
                if folding is not late.folding or goes_on.is_set():
                    await catch_up(folding)

            goes_on = asyncio.Event()
            monkeypatch.setattr(Folding, "_catch_up", held)
            await log.append(P0, b"acknowledged")
            await until(lambda: late._node.replica.committed == log._node.replica.committed)
            assert await beats(batches, seconds=0.2) <= 1
            goes_on.set()
            late.folding._bell.set()
        assert await read(late, P0, 0, 1) == [(0, b"acknowledged")]


async def test_a_replica_that_is_given_a_checkpoint_says_nothing_until_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (log, late):
        written = await filled(log, 2)
        async with aclosing(late.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            while (await first(batches)).next_offset < len(written):
                pass
            with monkeypatch.context() as patch:
                deaf(late, patch)
                written += await filled(log, 2, 2)
                await overtake(log)
                goes_on = hold(monkeypatch, ReplicaFiles, "store_piece")
            await until(lambda: late._node.replica.installing is not None)
            assert await beats(batches, seconds=0.2) <= 1
            goes_on.set()
        assert await read(late, P0, 0, 4) == written
        async with aclosing(late.follow(P0, 4, epoch=NO_EPOCH)) as batches:
            assert not (await first(batches)).records


async def test_what_is_read_of_a_backlog_proves_nothing_but_its_end(tmp_path: Path) -> None:
    async with two(tmp_path) as (log, late):
        await filled(log, 12)
        await until(lambda: late.folding.fold.ends[P0] == 12)
        seen: list[tuple[int, bool]] = []
        async with aclosing(late.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            async for batch in batches:
                seen.append((batch.next_offset, batch.late))
                if batch.next_offset == 12 and not batch.late:
                    break
        *before, last = seen
        assert len(before) >= 2
        assert all(is_late for _, is_late in before)
        assert last == (12, False)
        async with aclosing(late.follow(P0, 12, epoch=NO_EPOCH)) as batches:
            await first(batches)
            for number in range(12, 20):
                await log.append(P0, b"%d" % number)
                while (batch := await first(batches)).next_offset <= number:
                    pass
            assert not batch.late, "one that has all is not held up by what comes"


async def test_what_a_replica_has_proves_nothing_while_it_hears_no_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (log, late):
        await filled(log, 1)
        await until(lambda: late.folding.fold.ends[P0] == 1)
        monkeypatch.setattr(type(late._replica), "hears", False)
        async with aclosing(late.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            assert (await first(batches)).late
