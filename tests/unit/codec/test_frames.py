"""Frames whose contents a peer chose."""

import pytest

from rlmm_daemon.codec import frames
from rlmm_daemon.domain.errors import InvalidArgument


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("lone surrogate \ud800"),
        InvalidArgument("a field", path="\udcff"),
        InvalidArgument("a field", number=2**70),
        InvalidArgument("a field", thing=object()),
    ],
)
def test_an_error_that_quotes_what_cannot_be_encoded_is_answered_all_the_same(error):
    splitter = frames.Splitter()
    splitter.feed(frames.error_frame(7, error))
    answer = frames.decode_message(splitter.next() or b"")
    assert isinstance(answer, frames.Response)
    assert answer.error is not None
    assert (answer.id, answer.error.name) == (7, "invalid_argument")
    assert answer.error.message.startswith(error.message[:7])
