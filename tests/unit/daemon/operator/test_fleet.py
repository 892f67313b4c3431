"""Several daemons side by side: dead ones are said to be, and none breaks the page."""

import asyncio
import json
from typing import Any

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.operator.page import fleet as fleet_module
from rlmm_daemon.daemon.operator.page.fleet import AT_ONCE, FAULTS_MAX, Fleet, decoded
from rlmm_daemon.domain.errors import UnavailableError
from tests.support.page import HOSTILE, served
from tests.unit.daemon.following.test_mapped import NEVER
from tests.unit.daemon.operator.test_page import asked, get, manager  # noqa: F401 - a fixture

TOLD: dict[str, Any] = {
    "version": "0.1.0", "broker_id": 2, "cluster_id": "c", "uptime_seconds": 1.5, "followed": 3,
    "ready": 3, "topics": 1, "segments": 6, "bytes": 7, "copies": 0, "quorum": None, "wrong": [],
    "wrong_count": 0,
}  # fmt: skip
HARMS = (
    b"", b"{", b"null", b"[]", b'"x"', b"{}", b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000,
    b"<html><script>document.title='owned'</script>",
    *(json.dumps({**TOLD, key: bad}).encode() for key, bad in (
        ("version", 1), ("broker_id", "<b>"), ("uptime_seconds", -1), ("uptime_seconds", "NaN"),
        ("ready", -1), ("bytes", 2**70), ("broker_id", 2**64),
        ("quorum", {"epoch": 2**63}), ("segments", 1.5), ("wrong", [{"text": 3}]),
        ("wrong", "x"), ("quorum", []), ("quorum", {"role": {}}), ("wrong_count", None),
    )),
    json.dumps(TOLD).encode().replace(b"1.5", b"NaN"),
)  # fmt: skip


class Room:
    """Peers by what they answer, or raise."""

    def __init__(self, said: dict[str, bytes | Exception]) -> None:
        self.said, self.count, self.now, self.most = said, 0, 0, 0

    async def ask(self, address: str, path: str) -> bytes:
        assert path == "/api/standing"
        self.count += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        answer = self.said[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def looked(room: Room, bugs: Bugs | None = None, times: int = 1) -> Any:
    fleet = Fleet(list(room.said), room.ask, SystemClock(), bugs or Bugs())
    rows = fleet.peers
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(fleet.run())
        for _ in range(times):
            rows = await fleet.looked_at()
        running.cancel()
    return rows


async def test_each_peer_is_shown_as_it_tells_or_as_not_reached(monkeypatch):
    monkeypatch.setattr(fleet_module, "PATIENCE_SECONDS", 30.0)
    bugs = Bugs()
    room = Room({
        "well:1": json.dumps({**TOLD, "a later version's": [1]}).encode(),
        "dead:1": UnavailableError("not reached: Connection refused"),
        "bug:1": ZeroDivisionError(),
        **{f"{number}:1": harm for number, harm in enumerate(HARMS)},
    })  # fmt: skip
    well, dead, bug, *harms = await looked(room, bugs)
    assert (well.told.broker_id, well.trouble) == (2, None)
    assert (dead.told, dead.trouble) == (None, "not reached: Connection refused")
    assert "a bug was met" in bug.trouble
    assert bugs.counts == {"fleet": 1}
    assert {row.trouble for row in harms} == {"answered with what is no daemon's standing"}
    assert len(harms) == len(HARMS)
    assert room.most <= AT_ONCE


async def test_looks_that_come_often_ask_once_in_a_period(monkeypatch):
    monkeypatch.setattr(fleet_module, "PATIENCE_SECONDS", 0.01)
    room = Room({"well:1": json.dumps(TOLD).encode()})
    (row,) = await looked(room, times=20)
    assert room.count == 1
    assert row.told is not None


async def test_a_look_does_not_wait_for_who_is_slow(monkeypatch):
    monkeypatch.setattr(fleet_module, "PATIENCE_SECONDS", 0.01)
    never = asyncio.Event()

    async def silent(_address: str, _path: str) -> bytes:
        await never.wait()
        return b""

    fleet = Fleet(["slow:1"], silent, SystemClock(), Bugs())
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(fleet.run())
        (row,) = await fleet.looked_at()
        assert (row.told, row.trouble) == (None, "not asked yet")
        running.cancel()


def test_texts_of_a_peer_are_cut_and_its_faults_few():
    long = "x" * 20_000
    told = decoded(json.dumps({
        **TOLD, "version": long, "cluster_id": long, "quorum": {"role": long},
        "wrong": [{"text": long, "command": long}] * 1_000, "wrong_count": 1_000,
    }).encode())  # fmt: skip
    assert len(msgspec.json.encode(told)) < 300 * (2 * FAULTS_MAX + 4) + 600
    assert (len(told.wrong), told.wrong_count) == (FAULTS_MAX, 1_000)


async def test_a_daemon_tells_its_row_and_what_is_wrong(manager):  # noqa: F811
    async with served(manager, log_facts={"warnings": [HOSTILE[0]], "unwritable": "full"}) as page:
        status, _, body = await get(page, "/api/standing")
        told = decoded(body)
        assert (status, told.segments, told.topics, told.ready, told.followed) == (200, 3, 1, 1, 1)
        assert [each.text for each in told.wrong] == ["Writes are refused: full", HOSTILE[0]]
        assert (await get(page, "/api/standing", host="evil.example"))[0] == 421


async def test_two_daemons_see_each_other_and_the_one_that_is_not_there(rig, monkeypatch):
    monkeypatch.setattr(fleet_module, "PATIENCE_SECONDS", 30.0)
    async with (
        rig.manager(snapshots=NEVER) as one,
        served(one) as first,
        served(one, peers=[f"127.0.0.1:{first.address[1]}", "127.0.0.1:1"]) as second,
    ):
        found = await asked(second, "fleet")
        mine, other, dead = found["daemons"]
        assert mine["address"] is None
        assert other["told"]["version"] == mine["told"]["version"]
        assert dead["told"] is None
        assert dead["trouble"].startswith("not reached")
        assert len((await asked(first, "fleet"))["daemons"]) == 1
