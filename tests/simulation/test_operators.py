"""Operators beside a daemon whose files decay, cleaner, copies and the nightly job."""

import click
import pytest

from rlmm_daemon.cli.group import main
from rlmm_daemon.codec import api
from rlmm_daemon.codec.api import Right
from tests.simulation.operators.people import NOT_TYPED, ORDERS
from tests.simulation.operators.scenario import scenario
from tests.simulation.operators.stopped import STOPPED
from tests.simulation.world import run_seed

#: Commands that change nothing but what they are told to write for the asker.
READS = {
    "check-config", "cleanup", "decode", "doctor", "encode", "explain", "export", "partition-of",
    "fetch", "forecast", "log verify", "lookup", "partitions", "quorum describe",
    "reconcile findings", "reconcile lease",
    "reconcile manifests", "segments", "snapshot show", "snapshot verify", "status",
    "storage doctor", "storage verify", "support-bundle", "tail", "top",
}  # fmt: skip


@pytest.mark.parametrize("block", range(3))
def test_nothing_acknowledged_goes_and_what_is_named_next_ends_every_failure(block: int):
    for seed in range(block * 4, block * 4 + 4):
        failure = run_seed(seed, scenario).failure
        assert failure is None, failure


def test_the_same_seed_is_the_same_run():
    assert run_seed(3, scenario).trace == run_seed(3, scenario).trace


def _commands(group: click.Group, path: str = "") -> set[str]:
    found, context = set[str](), click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        words = f"{path} {name}".strip()
        found |= _commands(each, words) if isinstance(each, click.Group) else {words}
    return found


def test_each_command_that_changes_something_is_typed_or_said_not_to_be():
    typed = ORDERS.keys() | STOPPED.keys()
    assert _commands(main) - READS == typed | NOT_TYPED.keys()
    assert not typed & NOT_TYPED.keys()


def test_each_method_that_changes_something_is_reached():
    changing = {name for name, method in api.METHODS.items() if method.right is Right.ADMIN}
    reached = {words.replace(" ", "_").replace("-", "_") for words in ORDERS}
    # As `NOT_TYPED` says of the commands: a refusal begins nothing that could be lost.
    begin_nothing = {"topic_pause", "topic_resume"}
    assert changing - begin_nothing <= reached
    assert begin_nothing <= changing
