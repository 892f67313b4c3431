"""What every command says while the event log is not open: the cause, in time, with exit code 1."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rlmm_daemon.cli import main
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import uuid_text
from tests.support import failures
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, make

TIMEOUT_SECONDS = 1.0
#: What a command's own start and the answer may take beside it, on a busy machine.
GRACE_SECONDS = 4.0


def brokers_away(directory: Path, forks: ForkServer) -> Stocked:
    """A daemon whose log is on brokers that nobody has started."""
    text = CONFIG.read_text("utf-8").replace('kind = "embedded"', 'kind = "kafka"')
    text = text.replace("single_broker = true", '[event_log.kafka]\nbootstrap = ["127.0.0.1:1"]')
    config = directory / "rlmm.toml"
    config.write_text(text, "utf-8")
    it = make(directory, forks, config=config)
    del it.daemon.settings["event_log.partition_count"]
    return it


def words_of(it: Stocked, directory: Path) -> list[tuple[str, ...]]:
    segment = it.next(0)
    topic_id = uuid_text(segment.metadata.partition.topic_id)
    segment_id = uuid_text(segment.metadata.segment_id)
    files = ("--dir", str(Path(segment.stem).parent))
    start, end = segment.metadata.start_offset, segment.metadata.end_offset
    offsets = ("--start-offset", str(start), "--end-offset", str(end))
    return [
        ("segments", "orders-0"),
        ("export",),
        ("snapshot", "now"),
        ("log", "repair", "0"),
        ("log", "recover", "0"),
        ("purge", topic_id),
        ("lookup", "orders-0", "0", "0"),
        ("tail",),
        ("partitions",),
        ("partitions", "--users"),
        ("cleanup",),
        ("partition", "retry", "0"),
        ("partition", "rebuild", "0"),
        ("copy", topic_id, "orders-0", *files, *offsets, "--epochs", f"0:{start}"),
        ("fetch", "orders-0", segment_id, "--output", str(directory / "fetched")),
        ("delete", "orders-0", segment_id),
        ("partition", "accept-loss", "0", "--yes"),
        ("partition", "end-hold", "0"),
        ("explain", "orders-0"),
        ("status",),
    ]


#: It ends the daemon, with a log or without.
NEEDS_NO_LOG = {"drain"}


def asking_commands(command: click.Command, *path: str) -> Iterator[str]:
    """Yield every command that asks a daemon."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from asking_commands(each, *path, name)
    elif any("--socket" in option.opts for option in command.params):
        yield " ".join(path)


def test_every_command_that_asks_a_daemon_is_tried(tmp_path, forks):
    it = make(tmp_path, forks)
    tried = [" ".join(words) for words in words_of(it, tmp_path)]
    untried = [
        name
        for name in asking_commands(main)
        if name not in NEEDS_NO_LOG
        and not any(f"{words} ".startswith(f"{name} ") for words in tried)
    ]
    assert untried == []


def wrong_answers(it: Stocked, directory: Path, *causes: str) -> list[object]:
    """Return what does not end in time, with exit code 1, and naming the cause."""
    wrong = list[object]()
    for words in words_of(it, directory):
        began = time.monotonic()
        run = it.rlmm(*words, "--timeout", str(TIMEOUT_SECONDS))
        took = time.monotonic() - began
        if run.exit_code != 1 or not all(cause in run.output for cause in causes):
            wrong.append((words, run.exit_code, run.output))
        if took > TIMEOUT_SECONDS + GRACE_SECONDS:
            wrong.append((words, took))
    return wrong


def test_while_brokers_are_away_each_command_says_so_in_time(tmp_path, forks):
    it = brokers_away(tmp_path, forks)
    with it.daemon:
        assert wrong_answers(it, tmp_path, "not open", "127.0.0.1:1") == []
        assert it.rlmm("status").exit_code == 1
        assert it.daemon.stop() == 0


def test_a_job_with_an_hour_s_deadline_is_refused_while_brokers_are_away(tmp_path, forks):
    it = brokers_away(tmp_path, forks)
    with it.daemon, it.daemon.client() as client, pytest.raises(NotReady, match="not open"):
        client.snapshot_now(timeout_seconds=3_600)


def test_while_the_embedded_log_is_missing_each_command_says_so_until_the_loss_is_accepted(
    tmp_path, forks
):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        assert it.daemon.stop() == 0
        shutil.rmtree(it.log_dir)
        it.daemon.start()
        assert wrong_answers(it, tmp_path, "holds no event log") == []
        words = ("partition", "accept-loss", "--all", "--without-looking", "--yes")
        assert it.rlmm(*words).exit_code == 0
        it.announce()
        assert eventually(lambda: it.copy_new(0))


@pytest.mark.timeout(60)
def test_a_daemon_whose_disk_hangs_ends_when_it_is_told(tmp_path, forks):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        failures.log_whose_disk_hangs(it)
        eventually(lambda: "not opened yet" in it.rlmm("status").output)
        assert it.daemon.stop() == 0
