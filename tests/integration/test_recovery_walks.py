"""Each failure of a real daemon, ended by typing what it names next; nothing acknowledged goes.

`recovery_walks.txt` has every walk as it went; `pytest --rewrite` writes it down anew.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brisk import brisk
from tests.support.failures import FAILURES, Failure
from tests.support.fork_server import ForkServer
from tests.support.recovery_walk import CONFIGURATION, Walk, configuration
from tests.support.stocked_daemon import Stocked, make

WALKS = Path(__file__).with_name("recovery_walks.txt")


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, brisk(forks), config=configuration(tmp_path))
    with stocked.daemon:
        stocked.stock()
        yield stocked


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name.replace(" ", "-"))
def test_what_is_named_next_ends_the_failure_and_costs_nothing_acknowledged(
    failure: Failure, it: Stocked, request: pytest.FixtureRequest
):
    walk = Walk(it, it.daemon.directory / CONFIGURATION, cannot=failure.cannot)
    walk.remember()
    walk.hands = failure.make(it) or {}
    walk.remember()  # without what the failure itself took
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
