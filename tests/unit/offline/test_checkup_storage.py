"""What `rlmm doctor` says of holds by the times of a bucket's objects, and of other daemons."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.marker import Hold, OtherDaemon, Presence, presence_key
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.offline import checkup_storage
from rlmm_daemon.offline.checkup_storage import SKEW_MS, copied, other_daemon, slow
from tests.support.memory_storage import MemoryBucket, MemoryStorage

AT = 1_700_000_000_000


def hold(before_ms: int = AT) -> Hold:
    return Hold(metadata_partition=1, before_ms=before_ms, broker_id=1)


@pytest.mark.parametrize(
    ("holds", "ages", "warned"),
    [
        ([], [AT + 2 * SKEW_MS], False),
        ([hold()], [], False),
        ([hold()], [AT + SKEW_MS, AT + 2 * SKEW_MS], False),
        ([hold()], [AT + SKEW_MS + 1, AT + 2 * SKEW_MS], True),
        ([hold(AT + 2 * SKEW_MS), hold()], [AT + SKEW_MS + 1], True),
    ],
)
def test_a_hold_that_nothing_is_as_old_as_is_told_of(holds, ages, warned):
    found = copied(holds, ages)
    assert [each.verdict for each in found] == ["warning"] * warned
    for each in found:
        assert each.found.startswith("of the first ")
        assert each.found.endswith("the bucket looks copied")


OTHER = OtherDaemon(who="host b", met=False)


@pytest.mark.parametrize(
    ("written", "place", "found"),
    [
        ({}, "ours", []),
        ({}, "", []),
        ({"place": ""}, "ours", []),
        ({"place": "theirs", "ended": True}, "ours", []),
        ({"place": "theirs"}, "ours", [("warning", "is the one of host a", "rlmm storage doctor")]),
        ({"other": OTHER}, "ours", [("warning", "another daemon may run", "within two minutes")]),
        (
            {"other": replace(OTHER, met=True), "place": "theirs"},
            "ours",
            [("failed", "another daemon runs", "stop one of the two")],
        ),
    ],
)
def test_whose_the_presence_file_is(written, place, found):
    presence = Presence(
        cluster_id="c",
        broker_id=1,
        incarnation=None,
        started_at_ms=AT,
        written_at_ms=AT,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={},
        host="host a",
        **{"place": "ours"} | written,
    )
    findings = other_daemon(presence, place)
    assert len(findings) == len(found)
    for each, (verdict, words, advice) in zip(findings, found, strict=True):
        assert each.verdict == verdict
        assert words in each.found
        assert advice in (each.advice or "")


class At(SystemClock):
    def now_ms(self) -> int:
        return AT


async def test_of_a_large_bucket_so_many_segments_objects_are_looked_at(monkeypatch):
    """What else lies there may be older than a copy of the bucket."""
    monkeypatch.setattr(checkup_storage, "OBJECTS_MAX", 2)
    storage = MemoryStorage(clock=At())
    await storage.overwrite_control("_rlmm/marker.json", b"{}")
    await storage.overwrite_control("README", b"x")
    assert await checkup_storage._ages(storage) == []
    name = f"tiered/orders-0-{'A' * 22}/{'0' * 20}-{'A' * 22}"
    for suffix in (".index", ".log"):
        await storage.overwrite_control(name + suffix, b"x")
    assert await checkup_storage._ages(storage) == [AT, AT]


def test_a_storage_that_takes_its_time_is_called_slow():
    assert slow(0.3) == []
    (told,) = slow(4.26)
    assert (told.check, told.verdict) == ("storage", "warning")
    assert "takes 4.3 s" in told.found


class Bucket(MemoryStorage):
    """A bucket of presence files; its policy may allow no listing."""

    lists = True

    async def list(self, prefix: str) -> AsyncGenerator[Any, None]:
        if not self.lists:
            raise StorageUnavailable("access denied", reason="denied", retry=False)
        async for page in super().list(prefix):
            yield page


async def test_presence_files_that_cannot_be_read_or_listed_are_told_of():
    storage = Bucket(MemoryBucket(), clock=SystemClock())
    assert await checkup_storage._presences(storage) == []
    await storage.overwrite_control(presence_key(7), b"{")
    (found,) = await checkup_storage._presences(storage)
    assert (found.verdict, presence_key(7) in found.found) == ("failed", True)
    storage.lists = False
    (found,) = await checkup_storage._presences(storage)
    assert (found.verdict, "can't be listed" in found.found) == ("warning", True)
