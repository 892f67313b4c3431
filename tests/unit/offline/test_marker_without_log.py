"""A marker that is rebuilt out of its copy, since the event log is gone as well."""

import pytest

from rlmm_daemon.codec import marker
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.offline import marker_rebuilding
from rlmm_daemon.ports.event_log import LogMissing
from tests.unit.offline.test_log_moving import config_of, stored


@pytest.fixture(params=["alone", "in a group"])
def gone(request, monkeypatch):
    """The log is gone: a file's reader says so itself, a topic's in a group of tasks."""
    error: Exception = LogMissing("topic is gone")
    if request.param == "in a group":
        error = ExceptionGroup("tasks", [error])

    class Reading:
        async def __aenter__(self) -> None:
            raise error

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(marker_rebuilding, "reading", lambda _config: Reading())


def run(config, *, execute: bool = True) -> marker_rebuilding.Outcome:
    return marker_rebuilding.run(config, {}, execute=execute)


@pytest.fixture
async def config(tmp_path):
    """A storage without its marker, of which the state directory has a copy."""
    config = config_of(tmp_path, storage=await stored(tmp_path))
    (tmp_path / "remote" / marker.MARKER_KEY).rename(tmp_path / "state" / "marker.json")
    return config


@pytest.mark.usefixtures("gone")
def test_the_copy_stands_for_a_log_that_is_gone_and_all_is_held(config, tmp_path):
    there = tmp_path / "remote" / marker.MARKER_KEY
    assert not run(config, execute=False).written
    assert not there.exists()
    outcome = run(config)
    assert (outcome.written, outcome.holds_all) == (True, True)
    made = marker.decode_marker(there.read_bytes())
    assert [hold.metadata_partition for hold in made.held] == [None]
    with pytest.raises(InvalidArgument, match="topic is gone"):
        run(config)  # it is in order now: what is missing is the log


@pytest.mark.usefixtures("gone")
def test_without_a_copy_nothing_stands_for_a_log_that_is_gone(config, tmp_path):
    (tmp_path / "state" / "marker.json").unlink()
    with pytest.raises(InvalidArgument, match="topic is gone"):
        run(config)
