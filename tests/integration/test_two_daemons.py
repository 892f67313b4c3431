"""Two daemons under one broker id: a state directory was copied, or an id was given twice."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rlmm_daemon.codec import marker
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import uuid_text
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, make

#: So a copy that was begun looks given up at once.
HASTY = {"cleaner.interval_seconds": 1, "copy.deadline_seconds": 1}
REBORN = 2_000_000_000_000


@pytest.fixture(scope="module")
def others_forks() -> Iterator[ForkServer]:
    """Each of them has one process at a time."""
    with ForkServer() as server:
        yield server


@pytest.fixture
def original(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    it = make(tmp_path / "original", forks, HASTY)
    with it.daemon:
        it.stock()
        yield it


def clone_of(it: Stocked, directory: Path, forks: ForkServer) -> Stocked:
    """Return a daemon on a copy of the state directory as it is now, and the same storage.

    Its daemon goes on meanwhile: what is on the way to its name may be gone when its turn comes.
    """
    other = make(directory, forks, {**HASTY, "storage.directory": it.daemon.remote})
    shutil.copytree(it.state_dir, other.state_dir, ignore=shutil.ignore_patterns("*.tmp"))
    return other


def presence(it: Stocked) -> marker.Presence:
    return marker.decode_presence((it.daemon.remote / marker.presence_key(1)).read_bytes())


def told(it: Stocked) -> str:
    """Return what `rlmm status` says of another daemon, "" if nothing."""
    return str(it.json("status")["storage"]["other_daemon"] or "")


def doctor(it: Stocked) -> list[dict[str, str]]:
    overrides = [f"--set={key}={value}" for key, value in it.daemon.settings.items()]
    run = it.daemon.rlmm("doctor", "--config", str(CONFIG), *overrides, "--json")
    assert run.returncode == 1, run.stderr
    rows: list[dict[str, str]] = json.loads(run.stdout)
    return rows


def objects(it: Stocked, name: str) -> int:
    return sum(name in path.name for path in it.daemon.remote.rglob("*"))


def test_a_clone_deletes_nothing_of_what_the_original_acknowledges(
    original, tmp_path, others_forks
):
    begun = original.next(0)
    name = uuid_text(begun.metadata.segment_id)
    with original.broker() as broker:
        broker.add_remote_log_segment_metadata(begun.metadata)
    clone = clone_of(original, tmp_path / "clone", others_forks)
    with original.daemon.client() as client:
        client.copy_segment(begun.metadata, begun.files)
    stored = objects(original, name)
    assert stored >= 5
    assert original.rlmm("status").exit_code == 0
    with (
        clone.daemon,
        clone.broker(incarnation=REBORN) as broker,
        clone.broker("storage", REBORN),
    ):
        broker.replace_assignment(clone.orders, [])
        eventually(
            lambda: clone.json("cleanup")["stuck"],
            lambda rows: any(row["step"] == "remove" for row in rows),
        )
        # Its cleaner found a copy to end, and was refused.
        eventually(
            lambda: clone.json("cleanup")["errors"],
            lambda rows: any("presence file" in row["error"] for row in rows),
        )
        assert objects(original, name) == stored
        # Whoever asks the original for a delete has it look, and so the original finds the clone.
        asked = original.copied(0)[0].metadata
        with original.daemon.client() as client, pytest.raises(StorageUnavailable) as refused:
            client.delete_segment(asked.partition, asked.segment_id)
        assert "another daemon has broker id 1" in refused.value.message
        assert objects(original, uuid_text(asked.segment_id)) == 5
        # It says so in the file, and so the clone finds the original.
        for it, other in ((original, clone), (clone, original)):
            assert other.daemon.process is not None
            assert f"pid {other.daemon.process.pid}" in eventually(partial(told, it))
            assert it.rlmm("status").exit_code == 1
            assert "Two daemons run under one broker id" in it.rlmm("explain", "orders-0").output
        (found,) = [each for each in doctor(original) if each["check"] == "broker id"]
        assert (found["verdict"], "another daemon runs" in found["found"]) == ("failed", True)
        other_daemon = presence(original).other
        assert other_daemon is not None
        assert other_daemon.met  # which the nightly job refuses
        # What either stored while both ran is kept until an operator says otherwise.
        assert json.loads((original.daemon.remote / marker.MARKER_KEY).read_bytes())["holds"]
        assert objects(original, name) == stored
    original.serves(0)
    assert begun.metadata.segment_id in original.listed(0)


def test_a_daemon_that_is_started_again_is_alone_at_once(original, tmp_path, others_forks):
    """Killed or stopped, in quick succession, and after a stop on another host as well."""
    given = iter(original.copied(0))

    def deletes(it: Stocked) -> None:
        with it.daemon.client() as client:
            client.delete_segment(it.orders[0], next(given).metadata.segment_id)

    for _ in range(2):
        original.daemon.kill()
        original.start()
    deletes(original)
    assert original.daemon.stop() == 0
    assert presence(original).ended
    original.start()
    deletes(original)
    assert original.daemon.stop() == 0
    moved = clone_of(original, tmp_path / "moved", others_forks)
    with moved.daemon:
        moved.announce()
        deletes(moved)
        assert moved.rlmm("status").exit_code == 0
    assert presence(original).other is None
    assert not json.loads((original.daemon.remote / marker.MARKER_KEY).read_bytes()).get("holds")
