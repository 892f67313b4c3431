"""Commands, examples, files and links of the README and of docs/: they work, and they are there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.cli.group import COMMANDS
from tests.support import kafka_segments
from tests.support.daemon_process import CONFIG, REPOSITORY, DaemonProcess, environment
from tests.support.make_targets import make_targets

README = REPOSITORY / "README.md"
#: The site's own list of pages is left out: nobody reads it here.
PAGES = [
    README,
    REPOSITORY / "CONTRIBUTING.md",
    *(page for page in sorted((REPOSITORY / "docs").glob("*.md")) if page.name != "index.md"),
]
OPERATING = (REPOSITORY / "docs" / "operating.md").read_text()
PYTHON = (REPOSITORY / "docs" / "python.md").read_text()
BY_HAND = OPERATING.split("## Try it by hand")[1]
FIRST_STEPS = OPERATING.split("\n## ")[0]
#: A stranger reads no more before he decides.
README_LINES_MAX = 130


def typed(section: str, command: str) -> list[str]:
    """The lines of a section's console blocks that begin with this command."""
    blocks = re.findall(r"```console[ a-z]*\n(.*?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line[2:] for line in lines if line.startswith(f"$ {command} ")]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("readme")) as daemon:
        placed = kafka_segments.place(daemon.log_dir)
        with daemon.client() as client:
            client.replace_assignment(placed, [])
            client.list_remote_log_segments(next(iter(placed)))  # waits until it can be answered
            for segment in next(iter(placed.values())):
                client.copy_segment(segment.metadata, segment.files)
        yield daemon


def test_an_operators_first_steps_work_in_their_order(daemon: DaemonProcess):
    steps = [shlex.split(line, comments=True)[1:] for line in typed(FIRST_STEPS, "rlmm")]
    assert len(steps) > 10
    segment_id = daemon.rlmm("segments", "orders-0", "--json").stdout.split('"id":"')[-1][:22]
    state_dir = str(daemon.directory / "var" / "state")
    for step in steps:
        words = [
            word.replace("SEGMENT_ID", segment_id).replace("/var/lib/rlmm", state_dir)
            for word in step
        ]
        if words[0] in {"log", "snapshot"} and "verify" in words and daemon.process is not None:
            assert daemon.process.wait(30) == 0, "drained"
            daemon.kill()
        ended = daemon.rlmm(*words)
        trouble = "999999" in words  # an offset that is nowhere
        assert ended.returncode == trouble, (words, ended.stdout, ended.stderr)
    assert (daemon.directory / "segment.log").stat().st_size > 40_000


def test_a_daemon_without_a_broker_is_tried_by_hand(tmp_path: Path):
    codes = {"copy": 0, "segments": 0, "explain": 1, "drain": 0}  # offset 900 is nowhere
    with DaemonProcess(tmp_path) as daemon:
        kafka_segments.place(daemon.log_dir)  # what `cp` does
        for line in typed(BY_HAND, "rlmm"):
            words = shlex.split(line)[1:]
            if "--state-dir" in words:
                assert daemon.process is not None
                assert daemon.process.wait(30) == 0, "drained"
                codes["explain"] = 0
            ended = daemon.rlmm(*words)
            assert ended.returncode == codes[words[0]], (words, ended.stdout, ended.stderr)


def test_the_example_in_python_runs(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", PYTHON, re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("0 99 COPY_SEGMENT_STARTED\n", "")


def test_every_command_has_a_place_in_the_table_and_no_other_has():
    table = OPERATING.split("## The `rlmm` command")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`([a-z-]+)`", cell)} == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_file_and_link_that_is_named_exists(page: Path):
    text = page.read_text()
    assert {line.split()[1] for line in typed(text, "make")} <= make_targets()
    for path in re.findall(r"(?<![\w/])(?:deploy|config)/[\w./-]+\w", text):
        assert (REPOSITORY / path).exists(), path
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_the_readme_is_short_and_leads_to_every_page():
    lines = README.read_text().splitlines()
    assert len(lines) <= README_LINES_MAX
    for page in PAGES[1:]:
        assert f"({page.relative_to(REPOSITORY)})" in README.read_text(), page.name


def test_the_shipped_configuration_passes_its_check(daemon: DaemonProcess):
    assert daemon.rlmm("check-config", str(CONFIG)).returncode == 0
