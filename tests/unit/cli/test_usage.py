"""What was typed wrongly: exit code 2, before a daemon is asked, and what it may have been."""

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import Exit
from tests.support.terminal import in_terminal

NO_DAEMON = {"RLMM_SOCKET": "/nowhere/rlmm.sock"}
ID = "AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    ("words", "meant"),
    [("statsu", "status"), ("partition rebiuld", "rebuild"), ("status --jsno", "--json")],
)
def test_what_is_mistyped_is_told_what_it_may_have_been(words, meant):
    run = CliRunner().invoke(main, words.split(), env=NO_DAEMON)
    assert run.exit_code == Exit.USAGE
    assert f"Did you mean '{meant}'?" in run.stderr


def test_what_is_like_no_command_is_told_of_none():
    run = CliRunner().invoke(main, ["xyzzy"], env=NO_DAEMON)
    assert (run.exit_code, "Did you mean" in run.stderr) == (Exit.USAGE, False)


@pytest.mark.parametrize(
    "words",
    [
        "purge nonsense",
        "delete orders-0 nonsense --yes",
        "fetch orders-0 nonsense -o file",
        "copy nonsense orders-0 --dir / --start-offset 0 --end-offset 1 --epochs 0:0",
        f"copy {ID} orders-0 --dir / --start-offset 0 --end-offset 1 --epochs 0:0 --segment-id x",
        "reconcile accept-record 0 1 nonsense --reason why",
        "partition-of nonsense 0 --partitions 3",
    ],
)
def test_an_id_that_is_none_is_wrong_usage(words):
    run = CliRunner().invoke(main, words.split(), env=NO_DAEMON)
    assert run.exit_code == Exit.USAGE, run.output


def test_an_id_that_is_one_is_asked_about():
    run = CliRunner().invoke(main, ["purge", ID], env=NO_DAEMON)
    assert run.exit_code == Exit.UNREACHABLE


def test_nothing_binary_goes_to_a_terminal(tmp_path):
    words = ("fetch", "orders-0", ID, "-o", "-")
    code, shown = in_terminal(80, words, directory=tmp_path, variables=NO_DAEMON)
    assert (code, "binary" in shown) == (Exit.USAGE, True)
    piped = CliRunner().invoke(main, ["fetch", "orders-0", ID, "-o", "-"], env=NO_DAEMON)
    assert piped.exit_code == Exit.UNREACHABLE
