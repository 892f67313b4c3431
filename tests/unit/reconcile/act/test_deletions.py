"""Deletes batch by batch: what is counted and told, how long one may take, when to rest."""

import asyncio
import dataclasses
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.ports.storage import Traffic
from rlmm_daemon.reconcile.act import deletions
from rlmm_daemon.reconcile.act.deletions import PAUSE_SECONDS, Done, Executor
from rlmm_daemon.reconcile.act.lease import LeaseHeld
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest
from rlmm_daemon.reconcile.read import late_events, listing

SAFETY = Safety(batch_objects=2, deletes_per_second_max=1_000, throttled_share_max=0.6)


def entry(number: int, **more: Any) -> CondemnedObject:
    return CondemnedObject(
        key=f"k{number}", size=10**number, etag="e", modified_ms=number, kind="orphan", **more
    )


class Storage:
    """Deletes all but what it is told to refuse; notes everything."""

    def __init__(self, refused: Collection[str] = (), throttled: int = 0) -> None:
        self.refused, self.throttled, self.asked = refused, throttled, 0
        self.done: list[str] = []

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        self.done.append(f"delete {','.join(keys)}")
        return {key: StorageUnavailable("no") if key in self.refused else None for key in keys}

    async def abort_upload(self, upload: Any) -> None:
        self.done.append(f"abort {upload.upload_id}")
        if upload.upload_id in self.refused:
            raise StorageUnavailable("no")

    def traffic(self) -> Traffic:
        self.asked += 1
        return Traffic(
            requests={("delete", "ok"): 5 * self.asked},
            retries={},
            retry_budget=1.0,
            throttled=self.throttled * self.asked,
            in_flight={},
            in_flight_max={},
            uploads_left=0,
        )


class Silent(Storage):
    """One that counts nothing."""

    traffic = None  # type: ignore[assignment]  # as a storage without the method


@dataclasses.dataclass
class Rig:
    storage: Any
    executor: Any
    lines: list[Any]
    slept: list[float]
    timeouts: list[float | None]
    lease: Any


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(storage: Any, *, safety: Safety = SAFETY, **seen: Any) -> Rig:
        slept, timeouts, lines, sleep = (
            list[float](),
            list[float | None](),
            list[Any](),
            asyncio.sleep,
        )
        timeout = asyncio.timeout

        async def no_sleep(seconds: float) -> None:
            slept.append(seconds)
            await sleep(0)

        def noted(seconds: float | None) -> Any:
            timeouts.append(seconds)
            return timeout(seconds)

        async def look() -> Any:
            return SimpleNamespace(log=None, manifests=seen.get("manifests", {}))

        async def renew() -> None:
            storage.done.append("renew")

        def check() -> None:
            if seen.get("lost"):
                raise LeaseHeld("another run")

        lease = SimpleNamespace(fence=7, renew=renew, check=check, unanswered=False)
        monkeypatch.setattr(asyncio, "sleep", no_sleep)
        monkeypatch.setattr(asyncio, "timeout", noted)
        monkeypatch.setattr(late_events, "tail", lambda *_: (seen.get("touched", set()), {0: 1}))
        changed = seen.get("changed", {})
        monkeypatch.setattr(deletions, "what_changed", lambda _, one: changed.get(one.key, ""))
        executor = Executor(
            cast("Any", None),
            storage,
            cast("Any", lease),
            safety=safety,
            ends={0: 0},
            look=look,
            audit=lines.extend,
        )
        return Rig(storage, executor, lines, slept, timeouts, lease)

    return made


async def test_what_is_deleted_and_what_is_refused_is_counted_and_told(rig):
    one = rig(Storage(refused=["k2", "u4"]))
    uploads = [entry(3, upload_id="u3"), entry(4, upload_id="u4")]
    done = await one.executor.delete([entry(0), entry(1), entry(2), *uploads])
    assert done == Done(deleted=3, deleted_bytes=1 + 10 + 1000, failed=2, dropped={})
    assert one.storage.done == [
        "renew", "delete k0,k1", "renew", "delete k2", "abort u3", "renew", "abort u4",
    ]  # fmt: skip
    told = [
        (line["deleted"], line["bytes"], line["error"]) for line in one.lines if "deleted" in line
    ]
    assert told == [
        ("k0", 1, None),
        ("k1", 10, None),
        ("k2", 100, "no"),
        ("k3", 1_000, None),
        ("k4", 10_000, "no"),
    ]
    before = [line.get("deleting", line.get("deleted")) for line in one.lines]
    assert before == ["k0", "k1", "k0", "k1", "k2", "k3", "k2", "k3", "k4", "k4"], (
        "told before, too"
    )
    assert all(line["fence"] == 7 for line in one.lines)
    assert one.lease.unanswered, "whoever waits for the run waits behind what may come late"


async def test_what_is_left_alone_is_told_with_its_reason(rig):
    manifests = {
        "m": Manifest(run="r", fence=1, created_ms=0, entries=(entry(0),), restored=True),
    }
    one = rig(Storage(), manifests=manifests, touched={"s"}, changed={"k2": "gone already"})
    entries = [entry(0), entry(1, segment_id="s"), entry(2), entry(3)]
    done = await one.executor.delete(entries)
    assert (done.deleted, done.failed) == (1, 0)
    assert not one.lease.unanswered
    reasons = [
        "its manifest was restored", "the log names its segment again", "gone already",
    ]  # fmt: skip
    assert done.dropped == dict.fromkeys(reasons, 1)
    told = [(line["dropped"], line["reason"]) for line in one.lines if "dropped" in line]
    assert told == [(f"k{number}", reason) for number, reason in enumerate(reasons)]
    assert one.storage.done == ["renew", "renew", "delete k3"]
    await one.executor.delete([entry(0)])
    assert done.dropped["its manifest was restored"] == 2


async def test_under_a_lease_that_is_over_nothing_is_deleted_nor_told(rig):
    one = rig(Storage(), lost=True)
    with pytest.raises(LeaseHeld):
        await one.executor.delete([entry(0)])
    assert (one.storage.done, one.lines) == (["renew"], [])


async def test_a_batch_of_deletes_may_take_what_is_left_of_the_lease_at_least(rig):
    one = rig(Storage())
    await one.executor.delete([entry(0)])
    assert SAFETY.lease_seconds / 2 in one.timeouts
    assert len([seconds for seconds in one.timeouts if seconds is not None]) == 1


async def test_so_many_are_deleted_in_a_second(rig):
    one = rig(Storage())
    await one.executor.delete([entry(n) for n in range(3)])
    assert one.slept == [2 / 1_000, 1 / 1_000]


@pytest.mark.parametrize(
    ("refused", "throttled", "rests"),
    [(["k0"], 0, False), (["k0", "k1"], 0, True), ([], 3, False), ([], 4, True)],
)
async def test_a_storage_that_refuses_or_throttles_more_than_a_share_is_left_to_rest(
    rig, refused, throttled, *, rests
):
    one = rig(Storage(refused, throttled))
    await one.executor.delete([entry(0), entry(1)])
    assert (PAUSE_SECONDS in one.slept) is rests
    await one.executor.delete([entry(2), entry(3)])
    assert one.slept.count(PAUSE_SECONDS) == (2 if throttled == 4 else int(rests))


async def test_a_batch_of_one_that_is_refused_is_refused_whole(rig):
    one = rig(Storage(["k0"]))
    await one.executor.delete([entry(0)])
    assert PAUSE_SECONDS in one.slept


async def test_of_a_batch_of_which_nothing_is_left_nothing_is_asked(rig):
    one = rig(Storage(), changed={"k0": "gone already"})
    done = await one.executor.delete([entry(0)])
    assert (done.deleted, one.storage.done) == (0, ["renew"])


@pytest.mark.parametrize(
    ("etag", "modified_ms", "changed"),
    [
        ("e", 5_999, False),
        ("e", 5_000, False),
        ("d", 5_000, True),
        ("f", 5_000, True),
        ("e", 4_999, True),
        ("e", 6_000, True),
    ],
)
def test_an_object_is_another_one_by_tag_or_second(
    monkeypatch: pytest.MonkeyPatch, etag: str, modified_ms: int, *, changed: bool
) -> None:
    found = SimpleNamespace(etag=etag, modified_ms=modified_ms)
    monkeypatch.setattr(listing, "look_up", lambda *_: found)
    one = CondemnedObject(key="k", size=1, etag="e", modified_ms=5_123, kind="orphan")
    config = cast("Any", None)
    assert bool(deletions.what_changed(config, one)) is changed
    listed = Manifest(run="r", fence=1, created_ms=0, entries=(one,))
    assert deletions.left(config, listed) == int(not changed)
    spared = msgspec.structs.replace(listed, restored=True)
    assert deletions.left(config, spared) == 1, "in whatever state"
