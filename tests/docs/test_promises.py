"""Tests that `docs/promises.md` names exist, and each promise has one."""

import re

import pytest

from tests.docs.named_tests import is_there
from tests.support.daemon_process import REPOSITORY

PAGE = (REPOSITORY / "docs" / "promises.md").read_text()
NODE = re.compile(r"  \* `(tests/[\w/]+\.py(?:::\w+)+)`")


def promises() -> dict[str, list[str]]:
    """Each promise, and the tests below it."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if line.startswith("* "):
            found[line.removeprefix("* ")] = []
        elif line.startswith("  "):
            named = NODE.fullmatch(line)
            assert named, line
            found[[*found][-1]].append(named[1])
    return found


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise[:40])
def test_a_promise_is_held_by_tests_that_there_are(promise):
    held = promises()[promise]
    assert promise.endswith(".")
    assert held, "nothing holds it"
    for node in held:
        assert is_there(node), node


def test_no_promise_is_made_twice_or_lost_by_a_slip_of_the_pages_form():
    assert PAGE.count("\n* ") == len(promises()) > 30
    assert PAGE.count("`tests/") - 4 == sum(map(len, promises().values()))
