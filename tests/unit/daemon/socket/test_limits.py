"""Every limit of the socket has a configuration key, a counter, and a test that reaches it."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields

from rlmm_daemon.config import load
from rlmm_daemon.config.model import Readiness, Socket
from rlmm_daemon.daemon.socket.limits import LIMITS, ServerOptions, ServerStats
from rlmm_daemon.wiring.options import server_options_of
from tests.support.daemon_process import CONFIG

TESTS = Path(__file__).parents[3] / "integration"
#: Of the socket, but no limits.
OTHERS = {"path", "mode", "rights"}


def test_every_key_is_a_limit_with_a_counter_and_the_reverse():
    keys = set(Socket.__struct_fields__) - OTHERS | {"held_reads_max"}
    assert "held_reads_max" in Readiness.__struct_fields__
    assert keys == set(LIMITS)
    assert set(LIMITS.values()) <= {each.name for each in fields(ServerStats)}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_key_reaches_the_server(limit):
    before = load(str(CONFIG))
    section = "readiness" if limit == "held_reads_max" else "socket"
    old = getattr(before, section)
    changed = msgspec.structs.replace(old, **{limit: getattr(old, limit) - 1})
    after = msgspec.structs.replace(before, **{section: changed})
    assert server_options_of(before) != server_options_of(after)
    assert isinstance(server_options_of(after), ServerOptions)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_test_reaches_it(limit):
    counter = LIMITS[limit]
    texts = [path.read_text() for path in TESTS.glob("test_socket*.py")]
    assert any(f"stats.{counter}" in text or f'"{counter}"' in text for text in texts)
