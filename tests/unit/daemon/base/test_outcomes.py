import asyncio

import pytest

from rlmm_daemon.daemon.base.outcomes import outcome_told
from rlmm_daemon.domain.errors import NotReady


@pytest.mark.parametrize(
    ("raised", "word"),
    [
        (NotReady(), "not_ready"),
        (asyncio.CancelledError(), "cancelled"),
        (ZeroDivisionError(), "internal_error"),
    ],
)
def test_each_end_has_its_word(raised, word):
    told: list[str] = []
    with outcome_told(told.append):
        pass
    with pytest.raises(type(raised)), outcome_told(told.append):
        raise raised
    assert told == ["ok", word]
