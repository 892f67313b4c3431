"""Rules for what brokers and controllers say of a topic id: neither is believed alone.

    brokers        controllers          counts as
    some know it   whatever             known
    all: unknown   know it              known: brokers lag, or answer for another cluster
    all: unknown   it is not there      unknown, as of an offset of the controllers' log
    all: unknown   no word              unknown, as before there was a word to ask for

A broker that did not answer is an error before this, whatever the controllers say.
"""

import msgspec

from rlmm_daemon.core.cluster_image.word import ControllersWord
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import TopicId


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """What brokers and controllers came to together."""

    unknown: frozenset[TopicId]
    #: Every live broker calls it unknown, and the controllers know it.
    contradicted: frozenset[TopicId] = frozenset()


def weigh(unknown_to_brokers: frozenset[TopicId], word: ControllersWord | None) -> Weighed:
    """Return which ids count as unknown."""
    if word is None:
        return Weighed(unknown=unknown_to_brokers)
    contradicted = unknown_to_brokers & word.known
    return Weighed(unknown=unknown_to_brokers - contradicted, contradicted=contradicted)


def require_all_asked(live: int, word: ControllersWord | None) -> None:
    """Refuse a look in which fewer brokers were asked than the controllers count as live.

    Raises:
        StorageUnavailable: the broker that named the others lags behind.
    """
    if word is not None and live < len(word.live):
        raise StorageUnavailable(
            f"{live} brokers were asked, and the controllers count {len(word.live)} live ones"
        )
