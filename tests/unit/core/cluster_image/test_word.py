"""When the controllers' word is given, and when it is not; it is never taken for a deletion."""

import pytest

from rlmm_daemon.core.cluster_image.image import Broker, ClusterImage
from rlmm_daemon.core.cluster_image.word import ControllersState, Following
from rlmm_daemon.core.disposal.topic_facts import require_all_asked, weigh
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, TopicId
from tests.support.cluster_log import removed, topic
from tests.unit.core.cluster_image.test_image import A, B, folded

OURS = "ours"


def imaged(end: int = 10) -> ClusterImage:
    image = folded(topic(A), topic(B), removed(B))
    image.reached(LogPoint(2, end))
    return image


def current(*, asked_at: float = 5.0) -> Following:
    following = Following(cluster_id=OURS)
    assert following.reached(imaged(), asked_at, 10)
    return following


def said(following: Following, asked_at: float = 5.0, cluster_id: str = OURS):
    return following.word([A, B], cluster_id=cluster_id, asked_at=asked_at)


def test_a_word_is_exact_and_dated():
    word = said(current())
    assert word is not None
    assert (word.known, dict(word.removed), word.at) == ({A}, {B: 2}, LogPoint(2, 10))


def test_without_a_snapshot_there_is_no_word():
    following = Following(cluster_id=OURS)
    assert said(following, asked_at=0.0) is None
    assert following.standing is ControllersState.LOADING


@pytest.mark.parametrize("high_watermark", [-1, 11])
def test_short_of_what_is_committed_there_is_no_word(high_watermark):
    following = Following(cluster_id=OURS)
    assert not following.reached(imaged(10), 5.0, high_watermark)
    assert said(following, asked_at=0.0) is None


def test_what_was_asked_for_before_the_question_is_no_answer():
    assert said(current(asked_at=5.0), asked_at=5.1) is None


def test_of_another_cluster_there_is_no_word():
    assert said(current(), cluster_id="another") is None


@pytest.mark.parametrize(
    "standing", [each for each in ControllersState if each is not ControllersState.CURRENT]
)
def test_once_a_fetch_was_missed_there_is_no_word(standing):
    following = current()
    following.missed(standing, "why")
    assert said(following, asked_at=0.0) is None
    assert following.trouble == "why"


def test_an_image_that_nobody_confirms_gets_stale_and_comes_back():
    following = current()
    following.missed(ControllersState.UNREACHABLE, "nobody listens")
    assert following.standing is ControllersState.STALE
    assert following.reached(imaged(), 9.0, 10)
    assert said(following, asked_at=9.0) is not None


@pytest.mark.parametrize("standing", [ControllersState.OTHER_CLUSTER, ControllersState.UNREADABLE])
def test_what_can_not_be_trusted_is_forgotten(standing):
    following = current()
    following.missed(standing, "why")
    assert (following.image, following.checked_at) == (None, None)


def test_both_have_to_call_it_gone():
    word = said(current())
    weighed = weigh(frozenset({A, B}), word)
    assert weighed.unknown == {B}
    assert weighed.contradicted == {A}
    assert weigh(frozenset(), word).unknown == frozenset(), "the controllers alone prove nothing"


def test_without_a_word_the_brokers_are_believed_as_ever():
    weighed = weigh(frozenset({A}), None)
    assert weighed.unknown == {A}
    assert not weighed.contradicted


def test_a_look_at_fewer_brokers_than_are_live_is_refused():
    following = Following(cluster_id=OURS)
    image = imaged()
    for number in (1, 2, 3):
        image.brokers[BrokerId(number)] = Broker(1, fenced=number == 3)
    assert following.reached(image, 5.0, 10)
    word = said(following)
    require_all_asked(2, word)
    require_all_asked(1, None)
    with pytest.raises(StorageUnavailable, match="1 brokers were asked"):
        require_all_asked(1, word)


NOBODYS = TopicId(b"no topic has it.")


def test_an_id_that_never_was_is_not_known():
    word = current().word([NOBODYS], cluster_id=OURS, asked_at=5.0)
    assert word is not None
    assert (word.known, dict(word.removed)) == (frozenset(), {})
