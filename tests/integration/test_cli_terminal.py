"""What a person sees on a terminal of 80 columns; `pytest --rewrite` writes it down anew."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.domain.ids import uuid_text
from tests.support.stocked_daemon import COUNT, Stocked, eventually, make
from tests.support.terminal import in_terminal, steady

SHOWN = Path(__file__).parent / "terminal_80.txt"
COLUMNS = 80
PROMPT = "$ rlmm "


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    stocked = make(tmp_path_factory.mktemp("cli"))
    with stocked.daemon:
        stocked.stock()
        # The cleaner follows the partition that holds no events, too.
        states = {"ready": COUNT}
        eventually(lambda: stocked.json("status")["metadata_partitions"] == states)
        yield stocked


def seen(it: Stocked, columns: int, words: list[str]) -> tuple[int, str]:
    return in_terminal(
        columns,
        words,
        directory=it.daemon.directory,
        variables={"RLMM_SOCKET": it.daemon.socket_path},
    )


def names(it: Stocked) -> dict[str, str]:
    log = it.json("status")["log"]["topic_id"]
    return {str(it.daemon.directory): "/HOME", log: "METADATA_TOPIC_ID"}


def test_each_screen_is_as_it_was_and_fits(it: Stocked, request: pytest.FixtureRequest):
    known = names(it)
    screens = []
    for line in SHOWN.read_text().splitlines():
        if not line.startswith(PROMPT):
            continue
        words = shlex.split(line.removeprefix(PROMPT).replace("/HOME", str(it.daemon.directory)))
        code, text = seen(it, COLUMNS, words)
        ours = [part for part in text.splitlines() if str(it.daemon.directory) not in part]
        assert max(map(len, ours), default=0) <= COLUMNS, text
        screens.append(f"{line}\n{steady(text, known).rstrip()}\n[exit code {code}]\n")
    written = "\n".join(screens)
    if request.config.getoption("--rewrite", default=False):
        SHOWN.write_text(written)
    assert SHOWN.read_text() == written


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_ids_and_numbers_stay_whole_however_narrow_the_terminal_is(it: Stocked, columns: int):
    _, text = seen(it, columns, ["segments", "orders-0"])
    for segment in it.copied(0):
        metadata = segment.metadata
        assert uuid_text(metadata.segment_id) in text
        assert f"{metadata.start_offset}..{metadata.end_offset}" in text
    assert "…" not in text


def test_a_pipe_has_no_colours_and_no_rules(it: Stocked):
    for words in (["status"], ["segments", "orders-0"], ["explain", "orders-0"]):
        shown = it.daemon.rlmm(*words).stdout
        assert not re.search(r"[\x1b─]", shown)
