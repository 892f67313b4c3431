"""Addresses and voters as operators type them."""

import pytest

from rlmm_daemon.cli.quorum.addresses import endpoint_of, voter_of
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import InvalidArgument

DIRECTORY = "AQEBAQEBAQEBAQEBAQEBAQ"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("a.example:9393", "a.example", 9393), ("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:9", "::1", 9)],
)
def test_an_address_is_host_and_port(text, host, port):
    at = endpoint_of(text)
    assert (at.host, at.port) == (host, port)


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:-1", "a:\u0661"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidArgument):
        endpoint_of(text)


def test_a_voter_is_kafkas_own_form():
    voter = voter_of(f"3@[::1]:9393:{DIRECTORY}")
    assert voter.key == ReplicaKey(3, b"\x01" * 16)
    assert [(at.host, at.port) for at in voter.endpoints] == [("::1", 9393)]


@pytest.mark.parametrize(
    "text",
    ["", "1", "1@a:1", f"x@a:1:{DIRECTORY}", f"a:1:{DIRECTORY}", "1@a:1:short", f"1@a:{DIRECTORY}"],
)
def test_what_is_no_voter_is_refused(text):
    with pytest.raises(InvalidArgument):
        voter_of(text)
