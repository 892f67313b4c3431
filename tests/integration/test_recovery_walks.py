"""Each failure of a real daemon, ended by typing what it names next; nothing acknowledged goes.

`recovery_walks.txt` has every walk as it went; `pytest --rewrite` writes it down anew.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from tests.support.fork_server import ForkServer
from tests.support.recovery_walk import CONFIGURATION, Walk, configuration
from tests.support.stocked_daemon import Stocked, eventually, flip, make

WALKS = Path(__file__).with_name("recovery_walks.txt")
S = SegmentState


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, config=configuration(tmp_path))
    with stocked.daemon:
        stocked.stock()
        yield stocked


Hands = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure, how it comes about, and what a person has means for then."""

    name: str
    #: What `rlmm explain` calls it; None: it ends by itself.
    cause: str | None
    #: What `rlmm explain` has to say before the first step.
    says: str = ""
    #: Makes it, and returns what a person can do by hand, by the words that name it.
    make: Callable[[Stocked], Hands | None]
    #: Commands that there are no means for.
    cannot: Sequence[str] = field(default=())


def without_snapshots(it: Stocked) -> None:
    shutil.rmtree(it.state_dir / "snapshots")


# The event log's files.


def damage_amid_the_newest_file(it: Stocked) -> None:
    assert it.rlmm("snapshot", "now").exit_code == 0
    it.daemon.kill()
    flip(it.log_files(0)[-1], 100)
    it.start()


def damage_that_no_snapshot_knows_of(it: Stocked) -> None:
    it.daemon.kill()
    without_snapshots(it)
    flip(it.log_files(0)[-1], 100)
    it.start()


def damage_of_a_sealed_file(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    sealed = it.log_files(0)[0]
    it.start()
    flip(sealed, sealed.stat().st_size // 2)
    assert it.rlmm("partition", "rebuild", str(it.number(0))).exit_code == 0


def damage_of_every_batch(it: Stocked) -> None:
    """Which is no torn tail, since all of it had been read."""
    eventually(lambda: position_of(it), lambda position: position >= 6)
    it.daemon.kill()
    without_snapshots(it)
    (path,) = it.log_files(0)
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    it.start()


def position_of(it: Stocked) -> int:
    path = it.state_dir / "positions.json"
    kept = json.loads(path.read_text())["partitions"] if path.exists() else {}
    (offset, _) = kept.get(str(it.number(0)), (0, 0))
    return int(offset)


def damage_with_objects_gone(it: Stocked) -> None:
    damage_that_no_snapshot_knows_of(it)
    segment_id = uuid_text(it.copied(0)[0].metadata.segment_id)
    (index,) = it.daemon.remote.rglob(f"*{segment_id}.index")
    index.unlink()


def log_that_lost_its_head(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    it.log_files(0)[0].unlink()
    without_snapshots(it)
    it.start()


def log_replaced_by_an_older_copy(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    older = it.daemon.directory / "older"
    shutil.copytree(it.log_dir, older)
    it.start()
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    older.rename(it.log_dir)


def older_copy_and_a_snapshot(it: Stocked) -> None:
    log_replaced_by_an_older_copy(it)
    it.start()


def older_copy_and_no_snapshot(it: Stocked) -> None:
    log_replaced_by_an_older_copy(it)
    without_snapshots(it)
    it.start()


def log_of_another_life(it: Stocked) -> None:
    """A directory that was made anew, as after a restore of the machine from an image."""
    assert it.daemon.stop() == 0
    names = json.loads((it.log_dir / "identity.json").read_text())
    shutil.rmtree(it.log_dir)
    it.log_dir.mkdir()
    names["topic_id"] = "AAAAAAAAQACAAAAAAAAABg"
    (it.log_dir / "identity.json").write_text(json.dumps(names))
    (it.log_dir / "state.json").write_text('{"format": 1, "generation": 0, "clean": {}}')
    it.start()


def log_not_mounted(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    away = it.daemon.directory / "away"
    it.log_dir.rename(away)
    it.start()

    def mount() -> None:
        shutil.rmtree(it.log_dir, ignore_errors=True)
        away.rename(it.log_dir)

    return {"mount its disk": mount}


def log_gone_without_snapshots(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    without_snapshots(it)
    it.start()


def log_without_a_name(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    whole = (it.log_dir / "identity.json").read_bytes()
    (it.log_dir / "identity.json").write_bytes(b"{")
    (it.log_dir / "state.json").unlink()
    it.start()
    return {
        "put that file back from a copy": lambda: (it.log_dir / "identity.json").write_bytes(whole)
    }


def log_without_a_state(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    (it.log_dir / "state.json").unlink()
    it.start()


def log_with_another_count(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    path = it.state_dir / "identity.json"
    names = json.loads(path.read_text())
    path.write_text(json.dumps(names | {"partition_count": 2}))
    it.start()


def newer(path: Path) -> Hands:
    """Have a newer version write a file; by hand, start that version, which reads it."""
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"format":1', b'"format":9').replace(b": 1,", b": 9,", 1))
    assert path.read_bytes() != whole
    return {"start that version": lambda: path.write_bytes(whole)}


def log_of_a_newer_version(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    hands = newer(it.log_dir / "identity.json")
    it.start()
    return hands


# What the daemon keeps beside the log.


def snapshot_of_a_newer_version(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    (path,) = (it.state_dir / "snapshots").glob(f"{it.number(0)}-*.snapshot")
    with path.open("r+b") as file:
        file.seek(8)
        file.write((9).to_bytes(4, "little"))
    it.start()


def three_crashes(it: Stocked) -> None:
    it.daemon.kill()
    note = {"partition": it.number(0), "at_ms": time.time_ns() // 1_000_000}
    crashes = {"format": 1, "notes": [note] * 3, "held": []}
    (it.state_dir / "crashes.json").write_text(json.dumps(crashes))
    it.start()


def finished_segment_that_is_held(it: Stocked) -> None:
    """Somebody ended as a stuck copy what had been finished a moment before."""
    segment = it.copied(0)[0].metadata
    update = SegmentUpdate(
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=ONLY_IF_STARTED,
        state=S.DELETE_SEGMENT_STARTED,
    )
    with it.daemon.client() as client:
        client.update_remote_log_segment_metadata(update)


# The log as a whole.


def log_in_use_elsewhere(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    held = ExitStack()
    lock = held.enter_context((it.log_dir / "lock").open("ab"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    it.start()
    return {"another process has the event log": held.close}


# The bucket.


def marker_of(it: Stocked) -> Path:
    return it.daemon.remote / "_rlmm" / "marker.json"


def marker_removed(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    marker_of(it).unlink()
    it.start()


def marker_damaged(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    marker_of(it).write_bytes(marker_of(it).read_bytes()[:40])
    it.start()


FAILURES: Sequence[Failure] = (
    Failure(
        name="damage amid the newest file of the log",
        cause="log_corrupt",
        make=damage_amid_the_newest_file,
    ),
    Failure(
        name="damage that no snapshot knows of",
        cause="log_corrupt",
        make=damage_that_no_snapshot_knows_of,
    ),
    Failure(
        name="damage of a sealed file of the log", cause="log_corrupt", make=damage_of_a_sealed_file
    ),
    Failure(name="damage of every batch", cause="history_lost", make=damage_of_every_batch),
    Failure(
        name="damage, and an object is gone too", cause="log_corrupt", make=damage_with_objects_gone
    ),
    Failure(name="a log that lost its head", cause="history_lost", make=log_that_lost_its_head),
    Failure(
        name="an older copy of the log, and a snapshot that knows more",
        cause="history_lost",
        make=older_copy_and_a_snapshot,
    ),
    Failure(
        name="an older copy of the log, and no snapshot",
        cause="history_lost",
        make=older_copy_and_no_snapshot,
    ),
    Failure(
        name="another log in its place",
        cause="history_lost",
        make=log_of_another_life,
        cannot=["rlmm log restore"],
    ),
    Failure(
        name="a finished segment that is held",
        cause="segments_held",
        make=finished_segment_that_is_held,
    ),
    Failure(name="a log that is not mounted", cause="log_missing", make=log_not_mounted),
    Failure(
        name="a log that is gone, and no snapshots",
        cause="log_missing",
        make=log_gone_without_snapshots,
        cannot=["rlmm log restore"],
    ),
    Failure(name="a log that lost its name", cause="log_unnamed", make=log_without_a_name),
    Failure(name="a log that lost its state", cause=None, make=log_without_a_state),
    Failure(
        name="another number of partitions",
        cause="partition_count_changed",
        make=log_with_another_count,
    ),
    Failure(name="a log of a newer version", cause="newer_log", make=log_of_a_newer_version),
    Failure(
        name="a snapshot of a newer version",
        cause="newer_snapshot",
        make=snapshot_of_a_newer_version,
    ),
    Failure(name="three crashes within a minute", cause="crash_loop", make=three_crashes),
    Failure(
        name="a log that another process has",
        cause="log_not_open",
        says="another process",
        make=log_in_use_elsewhere,
    ),
    Failure(name="a bucket whose marker is gone", cause="storage_trouble", make=marker_removed),
    Failure(name="a bucket whose marker is damaged", cause="storage_trouble", make=marker_damaged),
)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name.replace(" ", "-"))
def test_what_is_named_next_ends_the_failure_and_costs_nothing_acknowledged(
    failure: Failure, it: Stocked, request: pytest.FixtureRequest
):
    walk = Walk(it, it.daemon.directory / CONFIGURATION, cannot=failure.cannot)
    walk.remember()
    walk.hands = failure.make(it) or {}
    walk.forget_what_is_gone()
    walked = walk.go(failure.cause, failure.says)
    if request.config.getoption("--rewrite", default=False):
        write_down(failure.name, walked)
    assert stanzas()[failure.name] == walked


def stanzas() -> dict[str, list[str]]:
    """Return the walks that are written down, by the failure's name."""
    found = dict[str, list[str]]()
    for stanza in WALKS.read_text("utf-8").split("\n\n") if WALKS.exists() else []:
        name, *lines = stanza.strip().splitlines()
        found[name] = [line.strip() for line in lines]
    return found


def write_down(name: str, lines: list[str]) -> None:
    every = stanzas() | {name: lines}
    order = [failure.name for failure in FAILURES]
    told = [
        "\n".join([each, *(f"  {line}" for line in every[each])]) for each in order if each in every
    ]
    WALKS.write_text("\n\n".join(told) + "\n", "utf-8")


def test_each_walk_that_is_written_down_is_one_of_a_failure():
    assert list(stanzas()) == [failure.name for failure in FAILURES]
