"""A night that deletes while operators restore, hold and release manifests and break its lease.

Commands begin at any call that the run makes of its storage. Whatever a command said is still there
when it was through must be there at the end; and nothing goes that the plan did not name.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import UNSET

from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.reconcile import control, storage_time
from rlmm_daemon.reconcile.act import deletions, lease, quarantine
from rlmm_daemon.reconcile.act.deletions import Executor
from rlmm_daemon.reconcile.act.last_look import LastLook
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Holder, LeaseHeld
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest, ManifestWord
from tests.reconcile.test_executing import NOW, Passing, Site, Unanswered

SEEDS: Final = 40
ORPHANS: Final = 3
SAFETY: Final = Safety(batch_objects=2, deletes_per_second_max=10_000)
WORD: Final = ManifestWord(by="somebody", at_ms=NOW)


class Operators:
    """Commands beside one run, and what they said."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.luck = site, random.Random(seed)
        self.storage: Any = None
        self.names: list[str] = []
        #: By the storage's time, as each run counts.
        self.now_ms = storage_time.wall_ms()
        self.run_is_over = False
        self.tasks: list[asyncio.Task[None]] = []
        #: Keys that a command said are there and will stay, each with its manifest.
        self.promised: dict[str, str] = {}
        self.said: list[str] = []
        #: Releases that began or ended.
        self.releases = 0

    def tick(self) -> None:
        """Let a second go by at each step of the run, and begin a command at some."""
        self.now_ms += 1_000
        if self.luck.random() < 0.06:
            command = self.luck.choice([self.restore, self.hold, self.release, self.take_lease])
            self.tasks.append(asyncio.get_running_loop().create_task(command()))

    async def pause(self, _seconds: float) -> None:
        """Wait for the run's next step; without a run it is time alone that goes by."""
        if self.run_is_over:
            self.now_ms += 1_000
        await asyncio.sleep(0.001)

    def now(self) -> int:
        return self.now_ms

    async def restore(self) -> None:
        name = self.luck.choice(self.names)
        await self._keep(name, lambda: quarantine.restore(self.storage, name, WORD))

    async def hold(self) -> None:
        name = self.luck.choice(self.names)
        await self._keep(name, lambda: quarantine.change(self.storage, name, _held))

    async def _keep(self, name: str, change: Callable[[], Awaitable[Manifest]]) -> None:
        releases = self.releases
        changed = await change()
        await lease.wait_out(self.storage, self.now, self.pause)
        seen = await asyncio.to_thread(deletions.changes, self.site.config, changed.entries)
        # What another operator released meanwhile, and a third one held anew, is the third one's.
        if releases == self.releases:
            self.promised |= {key: name for key, gone in seen.items() if not gone}
            self.said.append("kept")

    async def release(self) -> None:
        name = self.luck.choice(self.names)
        self.releases += 1
        for key in [key for key, whose in self.promised.items() if whose == name]:
            if not (await quarantine.Manifests(self.storage).now())[name].restored:
                del self.promised[key]
        await quarantine.change(self.storage, name, _released)
        self.releases += 1

    async def take_lease(self) -> None:
        found = await lease.look(self.storage)
        if found is None or found.lease is None or found.ends_ms <= self.now_ms:
            return
        try:
            await lease.take_away(
                self.storage,
                found,
                by="me",
                fence=found.lease.fence + 1,
                now_ms=self.now,
                pause=self.pause,
            )
        except LeaseHeld:
            return
        self.said.append("broken")


class Ticking(Passing):
    """A storage between whose calls operators do something."""

    def __init__(self, inner: Any, operators: Operators) -> None:
        super().__init__(inner)
        self._operators = operators

    async def put_control(self, *asked: Any, **more: Any) -> Any:
        await self._step()
        return await self._inner.put_control(*asked, **more)

    async def get_control(self, key: str) -> Any:
        await self._step()
        return await self._inner.get_control(key)

    async def delete(self, keys: Collection[str]) -> Any:
        await self._step()
        return await self._inner.delete(keys)

    async def _step(self) -> None:
        self._operators.tick()
        for _ in range(self._operators.luck.choice([0, 0, 1, 5])):
            await asyncio.sleep(0.001)


def _held(known: Manifest) -> Manifest:
    return msgspec.structs.replace(known, held=WORD)


def _released(known: Manifest) -> Manifest:
    return msgspec.structs.replace(known, held=UNSET)


def night(home: Path, seed: int) -> Operators:
    """Let a run delete three orphans, each in a manifest of its own, beside operators."""
    site = Site(home)
    orphans = [site.orphan, *(site.world._orphan(20 * 86_400_000) for _ in range(ORPHANS - 1))]
    site.world.write_local()
    groups = [site.entries(orphan) for orphan in orphans]
    operators = Operators(site, seed)
    operators.names = [site.quarantined(group, run=f"r{at}") for at, group in enumerate(groups)]
    asyncio.run(_beside(operators, [entry for group in groups for entry in group]))
    lost = [key for key in operators.promised if not (site.world.home / "remote" / key).exists()]
    assert not lost, f"seed {seed}: {lost} were said to stay"
    live = [key for key in site.world.objects if not any(e.key == key for g in groups for e in g)]
    assert all((site.world.home / "remote" / key).exists() for key in live), "it was not planned"
    return operators


async def _beside(operators: Operators, entries: list[CondemnedObject]) -> None:
    site = operators.site
    async with control.opened(site.config) as storage:
        operators.storage = storage
        held = Holder(Ticking(storage, operators), owner="run", seconds=300, now_ms=operators.now)
        executor = Executor(
            site.config,
            Ticking(storage, operators),
            held,
            safety=SAFETY,
            ends=site.ends,
            look=LastLook(site.config, Ticking(storage, operators), started_ms=NOW),
            audit=lambda _lines: None,
        )
        try:
            await held.acquire()
            await executor.delete(entries)
        except LeaseHeld:
            pass
        finally:
            # Killed now and then: then its lease lasts.
            if operators.luck.random() < 0.7:
                await held.release()
            operators.run_is_over = True
        while operators.tasks:
            await operators.tasks.pop()


def nights(home: Path) -> set[str]:
    said: set[str] = set()
    for seed in range(SEEDS):
        said |= {*night(home / f"{seed}", seed).said}
    return said


@pytest.mark.timeout(300)
def test_what_a_command_said_is_kept_stays_whatever_the_run_was_doing(tmp_path: Path) -> None:
    assert nights(tmp_path) == {"kept", "broken"}, "each of them happened"


@pytest.mark.timeout(300)
def test_a_command_that_does_not_wait_for_the_run_promises_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: object) -> None:
        return

    monkeypatch.setattr(lease, "wait_out", at_once)
    with pytest.raises(AssertionError, match="were said to stay"):
        nights(tmp_path)


@pytest.mark.parametrize("goes_on", ["nobody", "another run", "break-lease"])
def test_what_a_killed_run_had_sent_is_behind_it_when_a_restore_says_what_is_there(
    tmp_path: Path, goes_on: str
) -> None:
    """It lands when the lease is over for long: S3 may carry it out for a quarter of an hour."""
    site = Site(tmp_path)
    (entry, *_) = site.entries(site.orphan)
    name = site.quarantined([entry])
    operators = Operators(site, 0)

    async def work() -> None:
        async with control.opened(site.config) as storage:
            operators.storage = storage

            class Killing(Passing):
                async def delete(self, _keys: Collection[str]) -> Any:
                    raise Unanswered

            started_ms = operators.now_ms
            held = Holder(storage, owner="killed", seconds=300, now_ms=operators.now)
            await held.acquire()
            executor = Executor(
                site.config, Killing(storage), held, safety=SAFETY, ends=site.ends,
                look=LastLook(site.config, storage, started_ms=NOW), audit=lambda _lines: None,
            )  # fmt: skip
            with pytest.raises(Unanswered):
                await executor.delete([entry])
            lands_ms = started_ms + (300 + lease.LATE_SECONDS) * 1_000 - 2_000

            async def pause(_seconds: float) -> None:
                operators.now_ms += 1_000
                if operators.now_ms >= lands_ms:
                    await storage.delete([entry.key])

            operators.pause = pause  # type: ignore[method-assign]  # time goes by itself
            if goes_on == "break-lease":
                found = await lease.look(storage)
                assert found is not None
                await lease.take_away(
                    storage, found, by="me", fence=9, now_ms=operators.now, pause=pause
                )
            operators.now_ms = max(operators.now_ms, started_ms + 301_000)
            if goes_on == "another run":
                other = Holder(storage, owner="other", seconds=300, now_ms=operators.now)
                await other.acquire()
                await other.release()
            await operators._keep(name, lambda: quarantine.restore(storage, name, WORD))

    asyncio.run(work())
    assert not site.there(entry), "it landed"
    assert operators.promised == {}, "it was said to stay"


@pytest.mark.parametrize("key", [LEASE_KEY, f"{quarantine.MANIFESTS}r0-001.json"])
def test_a_control_object_that_is_damaged_meanwhile_is_named(tmp_path: Path, key: str) -> None:
    site = Site(tmp_path)
    name = site.quarantined(site.entries(site.orphan), run="r0")
    site.world.write_control(key.removeprefix("_rlmm/"), b"{")

    async def work() -> None:
        async with control.opened(site.config) as storage:
            if key == LEASE_KEY:
                await Holder(storage, owner="a", seconds=300, now_ms=lambda: NOW).acquire()
            await quarantine.Manifests(storage).now()

    with pytest.raises(Malformed, match=key):
        asyncio.run(work())
    assert name == "r0-001.json"
