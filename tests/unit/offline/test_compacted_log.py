"""Commands on a log that was compacted: what was dropped is known, and no loss."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon import config as configuration
from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.compacted_files import Compaction
from rlmm_daemon.adapters.event_log.embedded.verify import PartitionReport
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.cli import main
from rlmm_daemon.config import Config  # noqa: TC001  # as every other module imports it
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.offline import answers, log_contents, log_copying, log_restoring
from rlmm_daemon.offline.log_contents import contents, opened
from rlmm_daemon.offline.log_restoring import known_to
from tests.support.compacting import compacted
from tests.unit.core.snapshots.test_compaction import state_of
from tests.unit.daemon.events import COUNT, TP
from tests.unit.offline.test_log_moving import CLUSTER, N, end, life

ALIVE = 2
SEGMENTS = 12


class Home:
    """An embedded log of segments that are gone but for the last, and a daemon's directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = str(root / "state" / "log")
        (root / "state").mkdir()
        self.config: Config = configuration.parse(
            f'[daemon]\nbroker_id = 1\ncluster_id = "{CLUSTER}"\nstate_dir = "{root}/state"\n'
            f'log_dirs = ["{root}/logs"]\n[event_log]\nkind = "embedded"\nsingle_broker = true\n'
            f"partition_count = {COUNT}\n"
        )
        self.values: list[bytes] = []
        for number in range(SEGMENTS):
            self.values += life(number)
            if number >= ALIVE:
                self.values += end(number - ALIVE)

    def write(self, values: list[bytes]) -> None:
        async def work() -> None:
            async with opened(self.config, self.log, COUNT) as log:
                await log_contents.append_all(log, N, values)

        asyncio.run(work())

    def compact(self) -> None:
        assert asyncio.run(compacted(self.log, COUNT))

    def report(self) -> PartitionReport:
        (found,) = [each for each in answers.verify_log(self.log) if each.partition == N]
        return found

    def read(self, name: str | None = None) -> log_contents.Contents:
        async def work() -> log_contents.Contents:
            async with opened(self.config, name or self.log, None) as log:
                return await contents(log, N)

        return asyncio.run(work())

    def snapshot(self, values: list[bytes], directory: Path | None = None) -> Path:
        """Write the snapshot that a daemon had which had read so much of the log."""
        fold = Fold(N, COUNT)
        for offset, value in enumerate(values):
            fold.apply(offset, value)

        async def topic_id():
            async with opened(self.config, self.log, None) as log:
                assert log.identity is not None
                return log.identity.topic_id

        header = sealing.header_of(
            fold, cluster_id=CLUSTER, topic_id=asyncio.run(topic_id()), created_at_ms=1
        )
        where = directory or self.root / "state" / "snapshots"
        where.mkdir(exist_ok=True)
        path = where / f"{N}-{1:010}.snapshot"
        path.write_bytes(b"".join(sealing.write_chunks(fold, header)))
        return path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.write(made.values)
    return made


def test_verify_counts_what_was_dropped_and_finds_no_damage(home: Home) -> None:
    before = home.report()
    assert (before.records, before.dropped) == (len(home.values), 0)
    home.compact()
    report = home.report()
    left = len(home.read().events)
    assert (report.records, report.dropped) == (len(home.values), len(home.values) - left)
    assert (report.findings, report.range) == ([], before.range)
    shown = CliRunner().invoke(main, ["log", "verify", home.log])
    assert shown.exit_code == 0
    assert "whole" in shown.stdout
    (row,) = [line for line in shown.stdout.splitlines() if f"0 to {len(home.values)}" in line]
    assert f" {report.dropped} " in row
    told = json.loads(CliRunner().invoke(main, ["log", "verify", home.log, "--json"]).stdout)
    assert [each["dropped"] for each in told] == [report.dropped]


def test_a_hole_that_no_compaction_made_is_damage_all_the_same(home: Home) -> None:
    home.compact()
    path = min(Path(home.log, str(N)).glob("*.log"))
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged)
    kinds = {each.kind for each in home.report().findings}
    assert kinds == {"corrupt"}


def test_a_copy_of_a_compacted_log_is_whole_and_folds_to_the_same(home: Home) -> None:
    home.compact()
    target = str(home.root / "copy")
    (row,) = [r for r in log_copying.run(home.config, home.log, target) if r.events]
    there, here = home.read(target), home.read()
    assert (row.events, row.lost_offsets) == (len(here.events), 0)
    assert state_of(there.fold) == state_of(here.fold)
    assert len(here.events) < len(home.values)
    assert (here.dropped_to > 0, there.dropped_to) == (True, 0)


def test_a_snapshot_that_had_read_as_far_restores_what_is_missing(home: Home) -> None:
    home.compact()
    home.snapshot([*home.values, *life(99)])
    known = known_to([str(home.root / "state" / "snapshots")])
    rows = log_restoring.run(home.config, known, home.log, execute=False)
    assert [row.missing for row in rows] == [1]


def test_a_snapshot_older_than_the_compaction_brings_nothing_back_unless_accepted(
    home: Home,
) -> None:
    """Segments 0 to 2 live in it; the log dropped their ends with all else that they said."""
    older = home.root / "older"
    home.snapshot(home.values[:6], older)
    before = log_restoring.run(home.config, known_to([str(older)]), home.log, execute=False)
    assert [row.missing for row in before] == [0], "the log has their ends"
    home.compact()
    known = known_to([str(older)])
    for execute in (False, True):
        with pytest.raises(InvalidArgument, match=r"was compacted up to offset .* --accept-loss"):
            log_restoring.run(home.config, known, home.log, execute=execute)
    rows = log_restoring.run(home.config, known, home.log, execute=False, accept_loss=True)
    assert [row.missing for row in rows] == [3], "no storage says otherwise"
    still = home.root / "still there"
    home.snapshot(home.values[-4:-2], still)
    fine = log_restoring.run(home.config, known_to([str(still)]), home.log, execute=False)
    assert [row.missing for row in fine] == [0], "nothing would come back"


def test_an_older_snapshot_is_not_read_on_from_offline(home: Home) -> None:
    home.snapshot(home.values[:6])
    home.compact()

    async def read() -> Fold:
        disk = LocalDisk()
        try:
            files_of = await answers._small_files(disk, home.root / "state", None)
            return (await answers._read(disk, files_of, MetadataPartition(N))).fold
        finally:
            disk.close()

    assert state_of(asyncio.run(read())) == state_of(home.read().fold)


def test_seal_and_recovery_know_a_compacted_log(home: Home) -> None:
    home.compact()
    known = state_of(home.read().fold)
    assert answers.seal_log(home.log) == COUNT
    assert state_of(home.read().fold) == known
    for name in ("identity.json", "state.json"):
        assert json.loads(Path(home.log, name).read_text())["format"] == 2
    Path(home.log, "state.json").unlink()
    assert state_of(home.read().fold) == known
    assert json.loads(Path(home.log, "state.json").read_text())["format"] == 2


@pytest.mark.parametrize("named", [0, 1])
def test_a_compaction_that_a_crash_cut_short_is_read_as_it_will_be(
    home: Home, named: int, monkeypatch
) -> None:
    class Killed(Exception):  # the name says what happens
        pass

    async def killed(disk, directory: str, compaction: Compaction) -> None:
        for base in compaction.bases[:named]:
            path = files.segment_path(directory, base)
            await disk.rename(path + compacted_files.CLEANED_SUFFIX, path)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", killed)
        with pytest.raises(ExceptionGroup):
            home.compact()
    there = sorted(path.name for path in Path(home.log, str(N)).iterdir())
    report = home.report()
    assert not report.findings
    assert report.dropped
    assert sorted(path.name for path in Path(home.log, str(N)).iterdir()) == there
    assert len(home.read().events) == report.records - report.dropped
    assert not home.report().findings


def test_files_of_a_compaction_that_nothing_decided_are_removed(home: Home) -> None:
    stray = Path(home.log, str(N), f"{0:020}.log{compacted_files.CLEANED_SUFFIX}")
    stray.write_bytes(b"half")
    assert not home.report().findings
    assert len(home.read().events) == len(home.values)
    assert not stray.exists()


def test_a_damaged_record_of_a_compaction_is_no_damage_to_the_log(home: Home) -> None:
    home.compact()
    known = state_of(home.read().fold)
    record = Path(home.log, str(N), compacted_files.RECORD_NAME)
    record.write_bytes(record.read_bytes()[:-9])
    assert state_of(home.read().fold) == known
    assert not home.report().findings
    home.write([value for n in range(20, 40) for value in (*life(n), *end(n))])
    home.compact()
    assert len(home.read().events) < 12


def test_a_state_directory_of_before_is_taken_up_as_it_is(home: Home) -> None:
    """It has neither a record of a compaction nor the newer format, and gets neither by itself."""
    copy = home.root / "before"
    shutil.copytree(home.log, copy)
    assert len(home.read(str(copy)).events) == len(home.values)
    assert json.loads((copy / "identity.json").read_text())["format"] == 1
    assert json.loads((copy / "state.json").read_text())["format"] == 1
    assert not list(copy.rglob(compacted_files.RECORD_NAME))


async def test_which_partitions_were_ever_compacted_is_told_by_their_records(tmp_path: Path):
    disk = LocalDisk()
    try:
        assert not await compacted_files.was_compacted(disk, str(tmp_path))
        partition = files.partition_directory(str(tmp_path), MetadataPartition(3))
        await disk.make_directory(partition)
        assert not await compacted_files.was_compacted(disk, str(tmp_path))
        await disk.write_atomically(f"{partition}/{compacted_files.RECORD_NAME}", b"damaged")
        assert await compacted_files.was_compacted(disk, str(tmp_path))
    finally:
        disk.close()


assert TP.topic == "orders", "as the selectors above say"
