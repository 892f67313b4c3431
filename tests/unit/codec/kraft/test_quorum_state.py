"""Kafka's quorum-state in both versions, byte for byte, and nothing guessed of a damaged one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import quorum_state
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import Malformed

ids = st.integers(0, 2**31 - 1)
keys = st.builds(ReplicaKey, ids, st.binary(min_size=16, max_size=16))
states = st.builds(SavedState, ids, st.none() | ids, st.none() | keys)
DIRECTORY = bytes.fromhex("27c6803dc7cb42dd9baacd494ffacc81")


def test_version_0_is_kafkas_byte_for_byte():
    """From a real controller of three."""
    real = (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}'
    )
    state = SavedState(1, 1, ReplicaKey(1))
    assert quorum_state.decode(real) == state
    assert quorum_state.encode(state, voters=(1, 2, 3)) == real


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (
            SavedState(2, None, ReplicaKey(1, DIRECTORY)),
            (
                b'{"leaderId":-1,"leaderEpoch":2,"votedId":1,'
                b'"votedDirectoryId":"J8aAPcfLQt2bqs1JT_rMgQ","data_version":1}'
            ),
        ),
        (
            SavedState(7, 3, None),
            (
                b'{"leaderId":3,"leaderEpoch":7,"votedId":-1,'
                b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
            ),
        ),
    ],
)
def test_version_1_is_kafkas_byte_for_byte(state, line):
    assert quorum_state.encode(state) == line
    assert quorum_state.decode(line) == state


@given(states)
def test_what_was_saved_is_read_again(state):
    assert quorum_state.decode(quorum_state.encode(state)) == state


@given(states)
def test_version_0_forgets_the_directory_and_nothing_else(state):
    read = quorum_state.decode(quorum_state.encode(state, voters=()))
    assert (read.epoch, read.leader) == (state.epoch, state.leader)
    assert (read.voted and read.voted.id) == (state.voted and state.voted.id)


@given(states, st.data())
def test_a_line_that_is_cut_short_is_refused(state, data):
    line = quorum_state.encode(state)
    with pytest.raises(Malformed):
        quorum_state.decode(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"data_version":2}',
        (
            b'{"leaderId":-2,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
            b'"data_version":1}'
        ),
        (
            b'{"leaderId":1,"leaderEpoch":-1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
            b'"data_version":1}'
        ),
        (
            b'{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"J8aAPcfLQt2bqs1JT_rMgQ",'
            b'"data_version":1}'
        ),
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"J8","data_version":1}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"data_version":1}',
    ],
)
def test_what_is_no_state_is_refused(line):
    with pytest.raises(Malformed):
        quorum_state.decode(line)
