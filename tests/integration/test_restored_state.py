"""A state directory that is put back from a backup, while the storage is away at first."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.domain.errors import HistoryLost, PartitionFailed
from rlmm_daemon.domain.ids import SegmentId
from tests.support import markers
from tests.support.stocked_daemon import Stocked, eventually, ran


def begin(it: Stocked, serial: int) -> None:
    """Append what a broker does while its storage is away: the begin of a copy."""
    segment = it.next(0).metadata
    fresh = SegmentId(bytes([*segment.segment_id[:14], 9, serial]))
    with it.broker() as broker:
        broker.add_remote_log_segment_metadata(replace(segment, segment_id=fresh))


def test_what_is_written_before_the_storage_comes_back_does_not_pass_for_what_was_lost(
    it, tmp_path
):
    """The epoch that is next in the backup was used already, by what the backup does not have."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.state_dir, backup := tmp_path / "backup")
    it.start()
    it.copy_new(0)
    assert it.daemon.stop() == 0
    said = marker.decode_presence((it.daemon.remote / marker.presence_key(1)).read_bytes())
    known = said.partitions[it.number(0)]
    shutil.rmtree(it.state_dir)
    backup.rename(it.state_dir)
    away = it.daemon.remote.rename(tmp_path / "away")
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    eventually(lambda: it.lines("bucket marker not read yet"))
    for serial in range(known.next_offset):
        begin(it, serial)
    assert it.row(0)["position"] > known.next_offset
    away.rename(it.daemon.remote)
    eventually(lambda: it.row(0)["state"], lambda state: state == "failed")
    assert it.row(0)["failure"]["reason"] == "history_lost"
    with pytest.raises(HistoryLost):
        it.listed(0)
    it.serves(1)


def test_what_was_acknowledged_before_a_kill_is_missed_in_an_older_state_directory(it, tmp_path):
    """The presence file follows what was read, while nothing else of the daemon changes."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.state_dir, backup := tmp_path / "backup")
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    file = it.daemon.remote / marker.presence_key(1)

    def told() -> bool:
        seen = marker.decode_presence(file.read_bytes()).partitions.get(it.number(0))
        return seen is not None and seen.next_offset == it.row(0)["position"]

    for serial in range(2):
        it.copy_new(0, serial)
        eventually(told)
    it.daemon.kill()
    shutil.rmtree(it.state_dir)
    backup.rename(it.state_dir)
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "failed")
    assert it.row(0)["failure"]["reason"] == "history_lost"
    it.serves(1)


DAMAGE: Final = {
    "damaged": lambda said: said.replace(b"{", b"[", 1),
    "newer": lambda said: said.replace(b'"format": 1', b'"format": 9', 1),
    "empty": lambda _: b"",
}


def unread(it: Stocked, broker_id: int) -> dict[str, Any]:
    """See that nothing is answered, and that it is said of which file."""
    eventually(lambda: it.row(0)["state"], lambda state: state == "failed")
    for partition in (0, 1):
        with pytest.raises(PartitionFailed):
            it.listed(partition)
    told = it.explain(0)
    assert told["cause"] == "presence_unread"
    key = marker.presence_key(broker_id)
    assert f"can't be read: {key}" in told["evidence"]
    return told


def give_up(it: Stocked, partition: int) -> None:
    """Type what is named until it answers again."""
    number = str(it.number(partition))
    eventually(lambda: it.row(partition)["state"], lambda state: state == "failed")
    ran(it, "log", "recover", number, "--execute")
    accept = f"rlmm partition accept-loss {number}"
    eventually(lambda: it.explain(partition)["next_command"], lambda command: command == accept)
    ran(it, "partition", "accept-loss", number, "--yes")
    eventually(lambda: it.row(partition)["state"], lambda state: state == "ready")
    it.serves(partition)


@pytest.mark.parametrize("damaged", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("broker_id", [1, 7])
def test_a_presence_file_that_cannot_be_read_holds_all_there_is_until_that_is_accepted(
    it: Stocked, damaged: Callable[[bytes], bytes], broker_id: int
) -> None:
    """Nobody knows how far its daemon had read the log: the state directory may be an older one."""
    assert it.daemon.stop() == 0
    files = it.daemon.remote / marker.PRESENCE_PREFIX
    whole = (it.daemon.remote / marker.presence_key(1)).read_bytes()
    assert b'"format": 1' in whole
    (files / "1.json.bak").write_bytes(b"somebody's")
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    assert it.daemon.stop() == 0
    kept = it.daemon.remote / marker.MARKER_KEY
    assert "holds" not in markers.content_of(kept.read_bytes()), "that one is nobody's word"
    damage = damaged(whole)
    (it.daemon.remote / marker.presence_key(broker_id)).write_bytes(damage)
    it.start()
    holds = eventually(lambda: markers.content_of(kept.read_bytes()).get("holds", []))
    assert [hold["metadata_partition"] for hold in holds] == [None]
    told = it.lines(
        "bucket marker got a hold on all objects: a presence file can't be read, so nobody knows "
        "how far its daemon had read the log; see docs/recovery.md"
    )
    assert [line["keys"] for line in told] == [[marker.presence_key(broker_id)]]
    unread(it, broker_id)
    assert it.daemon.stop() == 0
    assert (it.daemon.remote / marker.presence_key(broker_id)).read_bytes() == damage
    it.start()
    assert unread(it, broker_id)["next_command"] == f"rlmm log recover {it.number(0)}"
    for partition in (0, 1):
        give_up(it, partition)
    if broker_id == 1:
        assert "accept-loss --all" in it.json("status")["storage"]["error"]
        ran(it, "partition", "accept-loss", "--all", "--yes")
        file = it.daemon.remote / marker.presence_key(1)
        eventually(lambda: file.read_bytes() != damage)
    it.daemon.kill()
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    it.serves(0)


def test_an_older_state_directory_beside_a_presence_file_that_cannot_be_read_answers_nothing(
    it: Stocked, tmp_path: Path
) -> None:
    """It would answer "not there" of what the lost life acknowledged, and a consumer be reset."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.state_dir, backup := tmp_path / "backup")
    it.start()
    segment = it.copy_new(0)
    assert it.daemon.stop() == 0
    file = it.daemon.remote / marker.presence_key(1)
    whole = file.read_bytes()
    shutil.rmtree(it.state_dir)
    backup.rename(it.state_dir)
    file.write_bytes(whole[:-9])
    it.start()
    unread(it, 1)
    file.write_bytes(whole)
    eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "history_lost")
    assert segment not in it.acknowledged[:-1]
    it.serves(1)


def test_a_mount_that_is_missing_at_the_start_is_heard_when_it_comes_back(
    it: Stocked, tmp_path: Path
) -> None:
    """Its empty mount point is no bucket in which no daemon has said anything."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.state_dir, backup := tmp_path / "backup")
    it.start()
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.state_dir)
    backup.rename(it.state_dir)
    mounted = it.daemon.remote.rename(tmp_path / "mounted")
    it.daemon.remote.mkdir()
    it.start()
    eventually(lambda: it.json("status")["storage"]["error"])
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    it.daemon.remote.rename(tmp_path / "mount point")
    mounted.rename(it.daemon.remote)
    eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "history_lost")
    with pytest.raises(HistoryLost):
        it.listed(0)
    it.serves(1)
