"""The blocking client is the async one without its `await`."""

import pytest

from deploy.dev.blocking_client import CLIENT, MADE, blocking


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_the_async_client_is_not_stale(name):
    assert (CLIENT / "_sync" / name).read_text() == blocking(name), "run `make client`"


@pytest.mark.parametrize("name", MADE)
def test_nothing_async_is_left_in_it(name):
    assert "async" not in blocking(name).replace("_async/", "").lower()
    assert "await" not in blocking(name)


def test_each_module_of_one_client_has_its_twin():
    halves = [{path.name for path in (CLIENT / half).glob("*.py")} for half in ("_async", "_sync")]
    assert halves[0] == halves[1]
