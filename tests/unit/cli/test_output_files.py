"""Where `-o` and `--output` name no plain file: a device or a pipe is never replaced by one."""

import io
import os
import stat
from typing import cast

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.move import fetch
from rlmm_daemon.client import BulkReader

CONTENT = b"a segment"


def arriving() -> BulkReader:
    """What a daemon sends, as far as it is read here."""
    return cast("BulkReader", io.BytesIO(CONTENT))


@pytest.fixture
def pipe(tmp_path):
    """A pipe that somebody reads: `/dev/null` to everybody who can't make one."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reading
    os.close(reading)


def test_a_fetch_writes_into_a_pipe_and_leaves_it_one(pipe):
    path, reading = pipe
    assert fetch._save(arriving(), path) == len(CONTENT)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.read(reading, 100) == CONTENT
    assert [*path.parent.iterdir()] == [path]


def test_a_fetch_replaces_what_a_link_names(tmp_path):
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    fetch._save(arriving(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_an_export_takes_no_pipe_for_a_file(pipe):
    path, _ = pipe
    words = ["export", "--format", "parquet", "--output", str(path)]
    run = CliRunner().invoke(main, words, env={"RLMM_SOCKET": "/nowhere/rlmm.sock"})
    assert (run.exit_code, "is no file" in run.stderr) == (Exit.USAGE, True)
    assert stat.S_ISFIFO(path.stat().st_mode)
