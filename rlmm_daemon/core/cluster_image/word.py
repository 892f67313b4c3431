"""The controllers' word on topic ids: exact, dated, and given only where it may be believed.

An image tells of the past. A word on it is given where the leader of the controllers has answered a
fetch that was sent after the question, and the image reaches as far as that answer says is
committed. Anything else is no word: no snapshot yet, another cluster, a leader that is silent. That
is never taken for "the topic is gone".
"""

import enum
from collections.abc import Iterable, Mapping

import msgspec

from rlmm_daemon.core.cluster_image.image import ClusterImage
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.ids import BrokerId, TopicId


class ControllersState(enum.Enum):
    """Whether the controllers are followed, and what is in the way."""

    #: Nothing was whole yet: no snapshot, or not yet all that followed it.
    LOADING = "loading"
    CURRENT = "current"
    #: An image, and nobody who leads says whether it is the newest.
    STALE = "stale"
    UNREACHABLE = "unreachable"
    OTHER_CLUSTER = "other_cluster"
    #: The principal lacks ClusterAction.
    UNAUTHORIZED = "unauthorized"
    #: Records that this version can't read, or that contradict one another.
    UNREADABLE = "unreadable"


class ControllersWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the controllers said of some topic ids, and as of where in their log."""

    cluster_id: str
    at: LogPoint
    #: Of the ids that were asked about, those of topics that are there.
    known: frozenset[TopicId]
    #: Of these ids, where a RemoveTopicRecord was read. One that was removed before the snapshot,
    #: or was never there, has none.
    removed: Mapping[TopicId, int]
    #: Registered brokers, and those of them that may serve.
    registered: frozenset[BrokerId]
    live: frozenset[BrokerId]


class Following(msgspec.Struct, kw_only=True):
    """What following has come to; the adapter writes it, and whoever asks reads it."""

    cluster_id: str | None = None
    image: ClusterImage | None = None
    #: Of a clock that never goes back: when the newest fetch was sent whose answer the image
    #: reaches.
    checked_at: float | None = None
    standing: ControllersState = ControllersState.LOADING
    #: For people: what the last fetch met; None: it was answered.
    trouble: str | None = None

    def reached(self, image: ClusterImage, asked_at: float, high_watermark: int) -> bool:
        """Take in an answer of the leader to a fetch sent then; return whether it is all there.

        A leader that does not know yet what is committed (-1) confirms nothing.
        """
        if not 0 <= high_watermark <= image.at.end:
            return False
        self.image, self.checked_at = image, asked_at
        self.standing, self.trouble = ControllersState.CURRENT, None
        return True

    def missed(self, standing: ControllersState, trouble: str) -> None:
        """Say that a fetch brought nothing; an image that is there gets old."""
        if standing is ControllersState.UNREACHABLE and self.image is not None:
            standing = ControllersState.STALE
        if standing in (ControllersState.OTHER_CLUSTER, ControllersState.UNREADABLE):
            self.lost()
        self.standing, self.trouble = standing, trouble

    def lost(self) -> None:
        """Forget the image: it is begun anew, and nothing is believed meanwhile."""
        self.image, self.checked_at = None, None
        self.standing = ControllersState.LOADING

    def word(
        self, topic_ids: Iterable[TopicId], *, cluster_id: str, asked_at: float
    ) -> ControllersWord | None:
        """Return what may be said of topic ids to a question that was asked then; else None."""
        image, checked_at = self.image, self.checked_at
        if image is None or checked_at is None or checked_at < asked_at:
            return None
        if self.standing is not ControllersState.CURRENT or self.cluster_id != cluster_id:
            return None
        asked = frozenset(topic_ids)
        return ControllersWord(
            cluster_id=cluster_id,
            at=image.at,
            known=image.known(asked),
            removed={each: image.removed[each] for each in asked if each in image.removed},
            registered=frozenset(image.brokers),
            live=frozenset(each for each, broker in image.brokers.items() if not broker.fenced),
        )
