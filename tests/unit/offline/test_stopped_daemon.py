"""The commands that read a daemon's files, and what a usage error looks like."""

import asyncio
import json
import random
import re
from contextlib import suppress

import pytest
from click.testing import CliRunner

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.cli import main
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from tests.unit.daemon.events import COUNT, TP, started, until, updated


def run(*words):
    return CliRunner().invoke(main, list(words))


async def _life(home) -> None:
    disk = LocalDisk()
    async with asyncio.TaskGroup() as group:
        log = EmbeddedLog(
            disk=disk,
            clock=SystemClock(),
            spawn=lambda work, name: group.create_task(work, name=name),
            luck=random.Random(1),
            directory=f"{home}/log",
            partition_count=COUNT,
            cluster_id="c",
        )
        manager = Manager(
            log=log,
            disk=disk,
            clock=SystemClock(),
            rng=random.Random(2),
            options=ManagerOptions(state_dir=str(home)),
        )
        task = group.create_task(manager.run())
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 99), Caller.BROKER)
        await manager.events.update(updated(1), Caller.BROKER)
        await manager.drain()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await log.close()
    disk.close()


@pytest.fixture
def home(tmp_path):
    asyncio.run(_life(tmp_path))
    return tmp_path


def told(home, *words):
    """What is printed in a pipe, without times and places; and the exit code."""
    done = run("explain", *words, "--state-dir", str(home))
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \([^)]* ago\)", "TIME", done.stdout)
    return done.exit_code, [line.strip() for line in text.replace(str(home), "HOME").splitlines()]


FROM_FILES = "\u2022 no daemon was asked: these facts come from files, the newest of TIME"


def test_whole_files_are_explained(home):
    assert told(home, "orders-0") == (
        0,
        [
            "unknown  AQIDBAUGBwgJCgsMDQ4PEA:orders-0",
            "cause  offline",
            "",
            (
                "The files show nothing wrong with metadata partition 1. Whether it is ready only "
                "a running daemon can say."
            ),
            "",
            "Evidence",
            FROM_FILES,
            "\u2022 positions.json: read up to offset 2",
            "\u2022 the log's files end at offset 2",
            "\u2022 last snapshot up to offset 2: TIME",
            "\u2022 segments: 1 finished (100 B)",
            "\u2022 last event of a live segment: TIME",
            "",
            "Next",
            "systemctl status rlmm-daemon",
        ],
    )


def test_a_flipped_bit_in_the_log_is_explained(home):
    for snapshot in (home / "snapshots").iterdir():
        snapshot.unlink()
    (file,) = [path for path in (home / "log").glob("*/*.log") if path.stat().st_size]
    damaged = bytearray(file.read_bytes())
    damaged[70] ^= 1
    file.write_bytes(damaged)
    code, lines = told(home, "orders-0")
    assert code == 1
    assert lines[:4] == [
        "failed  AQIDBAUGBwgJCgsMDQ4PEA:orders-0",
        "cause  offline_log_corrupt",
        "",
        "The event log's files are damaged behind a place that was durable.",
    ]
    assert any(line.startswith("\u2022 HOME/log/1/") and "at byte 0" in line for line in lines)
    assert lines[-1] == "systemctl start rlmm-daemon && rlmm log repair 1"


def test_directories_of_the_log_that_changed_places_are_told_as_damage(home):
    """Every batch is whole, and every reader passes all of their events over."""
    log = home / "log"
    assert run("log", "verify", str(log)).exit_code == 0
    (log / "1").rename(log / "2")
    done = run("log", "verify", str(log))
    assert done.exit_code == 1
    assert "misplaced" in done.stdout
    assert "the events from offset 0 on are of partition 1" in " ".join(done.stdout.split())
    assert "Next: directories were mixed up: stop the daemon" in done.stdout
    told = json.loads(run("log", "verify", str(log), "--json").stdout)
    findings = [finding for report in told for finding in report["findings"]]
    assert [(each["kind"], each["position"]) for each in findings] == [("misplaced", 0)]


def test_a_log_that_is_shorter_than_what_was_read_is_explained(home):
    for file in (home / "log").glob("*/*.log"):
        file.write_bytes(b"")
    assert told(home, "orders-0") == (
        1,
        [
            "failed  AQIDBAUGBwgJCgsMDQ4PEA:orders-0",
            "cause  offline_history_lost",
            "",
            (
                "Events that had been acknowledged are missing from the event log: the daemon will "
                "refuse to answer about this partition."
            ),
            "",
            "Evidence",
            FROM_FILES,
            "\u2022 positions.json: read up to offset 2",
            "\u2022 the log's files end at offset 0",
            "\u2022 last snapshot up to offset 2: TIME",
            "",
            "Next",
            "systemctl start rlmm-daemon && rlmm log repair 1",
        ],
    )


def test_a_directory_that_no_daemon_used_is_explained(tmp_path):
    assert told(tmp_path, "orders-0") == (
        1,
        [
            "unknown  orders-0",
            "cause  offline_unbound",
            "",
            "This state directory was never bound to an event log.",
            "",
            "Evidence",
            "\u2022 no daemon was asked, and there are no files to read",
            "",
            "Next",
            "rlmm run --config FILE",
        ],
    )


def test_explain_finds_a_segment_in_the_files_and_says_how_old_they_are(home):
    done = run("explain", "orders-0", "--offset", "5", "--state-dir", str(home), "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["verdict"], answer["cause"]) == (0, "ready", "offset_found")
    assert "these facts come from files" in answer["evidence"][0]


def test_files_with_nothing_wrong_are_no_trouble_although_only_a_daemon_could_say_more(home):
    done = run("explain", "orders-0", "--state-dir", str(home), "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["cause"], answer["trouble"]) == (0, "offline", False)
    assert answer["verdict"] == "unknown"


def test_explain_reads_the_log_where_there_is_no_snapshot(home):
    for snapshot in (home / "snapshots").iterdir():
        snapshot.unlink()
    done = run("explain", "orders-0", "--epoch", "0", "--offset", "5", "--state-dir", str(home))
    assert done.exit_code == 0
    assert "A finished segment holds offset 5 of leader epoch 0." in done.stdout


def test_a_log_that_is_shorter_than_what_was_read_is_history_lost(home):
    for file in (home / "log").glob("*/*.log"):
        file.write_bytes(b"")
    done = run("explain", "orders-0", "--state-dir", str(home), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["cause"] == "offline_history_lost"


def test_log_verify_finds_what_was_damaged_in_the_middle(home):
    assert run("log", "verify", f"{home}/log").exit_code == 0
    (file,) = [path for path in (home / "log").glob("*/*.log") if path.stat().st_size]
    damaged = bytearray(file.read_bytes())
    damaged[70] ^= 1
    file.write_bytes(damaged)
    done = run("log", "verify", f"{home}/log", "--json")
    assert done.exit_code == 1
    findings = [at for report in json.loads(done.stdout) for at in report["findings"]]
    assert [at["kind"] for at in findings] == ["corrupt"]


def test_log_seal_works_on_a_log_that_nobody_uses(home):
    assert json.loads(run("log", "seal", f"{home}/log", "--json").stdout) == {"sealed": COUNT}
    assert run("log", "verify", f"{home}/log").exit_code == 0


def test_snapshot_verify_and_show_need_no_daemon(home):
    (file,) = (home / "snapshots").iterdir()
    assert run("snapshot", "verify", str(home)).exit_code == 0
    shown = json.loads(run("snapshot", "show", str(file), "--json").stdout)
    assert shown["partitions"][0]["segments"]["COPY_SEGMENT_FINISHED"] == 1
    file.write_bytes(file.read_bytes()[:-1])
    assert run("snapshot", "verify", str(file)).exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "orders-0", "--epoch", "1"],
        ["partition", "accept-loss"],
        ["partition", "accept-loss", "1", "--all"],
        ["fetch", "orders-0", "id", "-o", "-", "--range", "9:2"],
        ["tail", "--from", "3"],
        ["status", "--socket", "/" + "x" * 120],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words):
    assert run(*words).exit_code == 2


def test_a_missing_daemon_is_exit_code_3_and_explain_names_the_way_without(tmp_path):
    done = run("explain", "orders-0", "--socket", f"{tmp_path}/none.sock")
    assert done.exit_code == 3
    assert "--state-dir" in done.stderr


def test_a_loss_is_accepted_only_after_a_yes(tmp_path):
    words = ["partition", "accept-loss", "1", "--socket", f"{tmp_path}/none.sock"]
    refused = CliRunner().invoke(main, words, input="n\n")
    assert (refused.exit_code, "Aborted" in refused.stderr) == (1, True)
    assert CliRunner().invoke(main, words, input="y\n").exit_code == 3
