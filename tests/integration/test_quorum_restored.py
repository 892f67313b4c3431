"""A quorum begun again from a backup, as docs/quorum.md says it, on real daemons."""

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import uuid_text
from tests.integration.test_quorum_daemons import PARTITIONS, holds, until, write
from tests.support.quorum_daemons import QuorumDaemons
from tests.support.quorum_processes import CLUSTER

#: A replica that is only there to be copied.
OBSERVER = 9


def has_all(daemons: QuorumDaemons, number: int) -> bool:
    """As `rlmm quorum describe` shows it: that replica does not lag."""
    seen = asyncio.run(daemons.quorum.client(seconds=30).describe())
    ends = {each.key.id: each.end for each in (*seen.voters, *seen.observers)}
    return ends.get(number, -1) >= seen.high_watermark


def test_what_was_acknowledged_before_a_backup_is_there_and_what_came_later_is_missed(
    tmp_path: Path,
) -> None:
    """Old voters are not let in, and a daemon that had read more does not answer from less."""
    with QuorumDaemons(tmp_path, 1, 2, 3) as daemons:
        quorum, backup = daemons.quorum, tmp_path / "backup"
        for each in (1, 2, 3):
            daemons[each].start()
        for number in range(6):
            write(daemons[number % 3 + 1], number)
        until(partial(has_all, daemons, 1), "it does not lag")
        assert daemons[1].stop() == 0
        shutil.copytree(quorum[1].directory, backup)
        daemons[1].start()
        write(daemons[1], 6)
        for each in (1, 2, 3):
            until(partial(holds, daemons[each], set(range(7))), "all of it is everywhere")
        for each in (1, 2, 3):
            assert daemons[each].stop() == 0

        daemons[2].start()
        place = str(quorum[1].directory)
        quorum[1].directory.rename(tmp_path / "old-1")
        shutil.copytree(backup, place)
        force = ["force-voters", place, "--listen", quorum[1].address]
        refused = quorum.rlmm(*force, "--execute")
        assert "somebody answers" in refused.stderr, "an old voter runs yet"
        assert daemons[2].stop() == 0
        assert "nothing was done" in quorum.rlmm(*force).stdout
        done = quorum.rlmm(*force, "--execute")
        assert done.returncode == 0, done.stderr
        daemons[1].start()

        daemons[3].start()
        noted = quorum[3].directory / "voters-were-forced"
        until(noted.exists, "an old voter hears that it is none any more")
        assert "voters were forced" in daemons[3].rlmm("status").stdout
        daemons[3].kill()

        shutil.rmtree(daemons[2].directory / "var" / "state")
        for each in (2, 3):
            quorum[each].directory.rename(tmp_path / f"old-{each}")
            quorum.join(each)
            daemons[each].start()
            words = ["--node-id", str(each), "--listen", quorum[each].address, "--execute"]
            add = partial(quorum.rlmm, "add", *words, "--server", quorum[1].address)
            until(lambda: add().returncode == 0, "it counts")  # noqa: B023 - called here
        until(partial(holds, daemons[2], set(range(6))), "what was acknowledged before")
        write(daemons[2], 8)
        lost = PARTITIONS[6 % len(PARTITIONS)]
        for each in (1, 3):
            with daemons[each].client() as client, pytest.raises(RlmmError):
                client.list_remote_log_segments(lost)
            assert "accept-loss" in daemons[each].rlmm("explain", str(lost)).stdout
            accepted = daemons[each].rlmm("partition", "accept-loss", "--all", "--yes")
            assert accepted.returncode == 0, accepted.stderr
            until(partial(holds, daemons[each], {*range(6), 8}), "the loss was accepted")


def test_an_observer_is_copied_while_all_go_on(tmp_path: Path) -> None:
    """It becomes the only voter, of the log that daemons know, in an epoch of its own."""
    with QuorumDaemons(tmp_path, 1) as daemons, daemons.quorum as quorum:
        daemons[1].start()
        write(daemons[1], 1)
        observer = quorum.join(OBSERVER)
        quorum.start(OBSERVER)
        until(partial(has_all, daemons, OBSERVER), "it does not lag")
        assert observer.stop() == 0
        daemons[1].kill()
        words = ["force-voters", str(observer.directory), "--listen", observer.address]
        done = quorum.rlmm(*words, "--execute")
        assert done.returncode == 0, done.stderr
        observer.start([])
        described = partial(quorum.rlmm, "describe", "--server", observer.address)
        until(lambda: described().returncode == 0, "it leads")
        told = described().stdout
        assert CLUSTER in told
        assert "forced" in told
        quorum[1].directory.rename(tmp_path / "old-1")
        quorum.join(1)
        config = daemons[1].directory / "rlmm.toml"
        text = config.read_text()
        config.write_text(text.replace("bootstrap = []", f"bootstrap = ['{observer.address}']"))
        daemons[1].start()
        until(partial(holds, daemons[1], {1}), "its daemon goes on where it was")
        metadata = quorum[1].directory / "__rlmm_quorum-0" / "partition.metadata"
        assert uuid_text(quorum.topic_id) in metadata.read_text()
