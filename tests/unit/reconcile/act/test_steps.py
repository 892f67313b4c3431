"""The order in which a night acts on what it condemned, and the numbers that it notes of it."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.config import parse
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.reconcile.act import deletions, steps
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest, ManifestWord, NightPlan
from rlmm_daemon.reconcile.act.steps import Actor
from rlmm_daemon.reconcile.errors import Refused
from rlmm_daemon.reconcile.report.summary import Night
from rlmm_daemon.reconcile.workspace import AUDIT
from tests.unit.reconcile.configured import LOCAL

HOUR = 3_600_000
NOW = 1_700_000_000_000
SAFETY = Safety(quarantine_hours=168, objects_max=7)


def entry(number: int, size: int = 10) -> CondemnedObject:
    return CondemnedObject(
        key=f"k{number}", size=size, etag="e", modified_ms=number, kind="orphan_object"
    )  # fmt: skip


def manifest(*entries: CondemnedObject, age_hours: int = 169, **more: Any) -> Manifest:
    return Manifest(run="r", fence=1, created_ms=NOW - age_hours * HOUR, entries=entries, **more)


class Frames:
    """In place of Spark's frames: what they would yield, and what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.condemned: list[CondemnedObject] = []
        self.beyond = 0
        self.there: set[Any] = set()
        self.asked: list[tuple[Any, ...]] = []
        self.looked_for: list[Collection[str]] = []
        monkeypatch.setattr(steps, "oldest", self._oldest)
        monkeypatch.setattr(steps, "listed", self._listed)

    def _oldest(self, found: Any, known: Any, spared: Any, limit: int) -> Any:
        self.asked.append((found, known, spared, limit))
        return self.condemned, self.beyond

    def _listed(self, objects: Any, over: Mapping[str, Manifest]) -> Any:
        assert objects == "objects"
        self.looked_for.append([*over])
        return self.there


class Desk:
    """An actor, and what it set out to do."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames = Frames(monkeypatch)
        self.night = Night(run="r2", cluster="c", listed_at_ms=NOW, execute=True)
        self.night.objects, self.night.object_bytes = 10_000, 10**9
        self.actor = Actor(
            daemon=parse(LOCAL.format(home=home)),
            safety=SAFETY,
            night=self.night,
            directory=home,
            now_ms=NOW,
            ends={},
        )
        self.carried_out: list[tuple[Any, Any]] = []
        self.result = NightPlan(delete=(), quarantine=(), left=5)
        self.refusal: Refused | None = None
        desk = self

        async def carry_out(_: Actor, condemned: Any, settled: Any = ()) -> NightPlan:
            desk.carried_out.append((condemned, settled))
            if desk.refusal is not None:
                raise desk.refusal
            return desk.result

        monkeypatch.setattr(Actor, "_carry_out", carry_out)

    def act(self, manifests: Mapping[str, Manifest]) -> Night:
        self.actor.act("found", "objects", manifests)
        return self.night


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_with_nothing_to_do_no_lease_is_taken(desk: Desk) -> None:
    desk.frames.beyond = 3
    young = {"m": manifest(entry(1), age_hours=1)}
    night = desk.act(young)
    assert desk.carried_out == []
    assert desk.frames.looked_for == [], "no manifest's time is over: nothing is looked for"
    assert night.left == 3
    assert night.next_deletion_ms == NOW + 167 * HOUR


@pytest.mark.parametrize("what", ["delete", "quarantine", "settled"])
def test_each_thing_to_do_is_done_under_the_lease(desk: Desk, what: str) -> None:
    manifests = {"m": manifest(entry(1))}
    desk.frames.there = set() if what == "settled" else {entry(1).identity}
    desk.frames.condemned = {"delete": [entry(1)], "quarantine": [entry(2)], "settled": []}[what]
    desk.frames.beyond = 2
    night = desk.act(manifests)
    settled = ["m"] if what == "settled" else []
    assert desk.carried_out == [(desk.frames.condemned, settled)]
    assert desk.frames.looked_for == [["m"]]
    assert night.left == desk.result.left + 2, "as it was decided under the lease"


def test_what_waits_and_what_is_spared_is_told_to_whoever_takes_the_oldest(desk: Desk) -> None:
    word = ManifestWord(by="me", at_ms=NOW)
    manifests = {"due": manifest(entry(1)), "held": manifest(entry(2), held=word)}
    known = {entry(1).identity: True, entry(2).identity: False}
    told = ("found", known, {entry(2).name: "its manifest is held back"}, 2 * SAFETY.objects_max)
    desk.act(manifests)
    desk.actor.forecast("found", manifests)
    assert desk.frames.asked == [told, told]


def test_a_forecast_does_nothing_and_tells_what_the_caps_leave(desk: Desk) -> None:
    large = entry(1, size=10**9)
    desk.frames.condemned, desk.frames.beyond = [large, entry(2)], 4
    desk.actor.forecast("found", {"m": manifest(large, entry(2))})
    assert desk.carried_out == []
    assert desk.night.left == 5, "the large one, and what is beyond"
    assert desk.night.needs_approval == {"m": (1, 10**9)}


def test_what_needs_approval_is_told_by_manifest_and_each_object_once(desk: Desk) -> None:
    one, other, third = (entry(n, size=10**8 * n) for n in (1, 2, 3))
    desk.frames.condemned = [one, other, third]
    manifests = {
        "b": manifest(one, third),
        "a": manifest(one, entry(9)),
        "c": manifest(entry(8)),
        "d": manifest(other),
    }
    desk.actor.forecast("found", manifests)
    assert desk.night.needs_approval == {
        "a": (1, one.size),
        "b": (1, third.size),
        "d": (1, other.size),
    }


@pytest.mark.parametrize(
    ("execute", "refused", "quarantined", "expected"),
    [
        (True, [], 0, NOW + 10 * HOUR),  # what was due is deleted, or is left by a cap
        (True, ["because"], 0, NOW - HOUR),
        (False, [], 0, NOW - HOUR),
        (True, [], 1, NOW + 10 * HOUR),
    ],
)
def test_the_next_deletion_is_that_of_the_oldest_manifest_that_is_not_dealt_with(
    desk: Desk, *, execute: bool, refused: list[str], quarantined: int, expected: int
) -> None:
    desk.night.execute, desk.night.refused = execute, refused
    desk.night.quarantined = quarantined
    manifests = {"over": manifest(entry(1), age_hours=169), "on": manifest(entry(2), age_hours=158)}
    desk.actor.forecast("found", manifests)
    assert desk.night.next_deletion_ms == expected


def test_a_manifest_whose_time_is_over_this_very_moment_is_dealt_with(desk: Desk) -> None:
    manifests = {"now": manifest(entry(1), age_hours=168)}
    desk.frames.there = {entry(1).identity}
    assert desk.act(manifests).next_deletion_ms is None
    desk.night.execute = False
    desk.actor.forecast("found", manifests)
    assert desk.night.next_deletion_ms == NOW
    desk.night.execute = True
    one_later = {"now": Manifest(run="r", fence=1, created_ms=NOW - 168 * HOUR + 1, entries=())}
    desk.actor.forecast("found", one_later)
    assert desk.night.next_deletion_ms == NOW + 1


def test_what_tonight_quarantined_is_deleted_when_its_time_is_over(desk: Desk) -> None:
    desk.night.quarantined = 1
    desk.actor.forecast("found", {})
    assert desk.night.next_deletion_ms == NOW + 168 * HOUR
    desk.night.quarantined = 0
    desk.actor.forecast("found", {})
    assert desk.night.next_deletion_ms is None


def test_a_guard_that_speaks_against_it_is_told_beside_the_plan_of_before(desk: Desk) -> None:
    desk.refusal = Refused(["the marker is gone"])
    desk.frames.condemned = [entry(1), entry(2, size=10**9)]
    night = desk.act({"m": manifest(entry(1))})
    assert night.refused == ["the marker is gone"]
    assert night.left == 0
    assert night.next_deletion_ms == NOW - HOUR, "nothing of it was dealt with"


def test_the_audit_log_is_on_the_disk_when_its_lines_are_noted(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    path = tmp_path / AUDIT

    def fsync(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        synced.append(path.read_text().splitlines())

    monkeypatch.setattr(os, "fsync", fsync)
    desk.actor._note([{"deleting": "k1"}])
    desk.actor._note([{"deleted": "k1"}, {"deleting": "k2"}])
    assert [len(lines) for lines in synced] == [1, 3]
    last = json.loads(synced[-1][-1])
    assert last.pop("at_ms") > NOW
    assert last == {"deleting": "k2"}


def test_what_was_done_is_in_the_nights_numbers(desk: Desk) -> None:
    done = deletions.Done(deleted=1, deleted_bytes=2, failed=3, dropped={"why": 4})
    desk.actor._note_done(done)
    night = desk.night
    assert (night.deleted, night.deleted_bytes, night.failed) == (1, 2, 3)
    assert night.dropped == {"why": 4}
