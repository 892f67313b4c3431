"""Selection of user partitions: `orders-7`, a topic id, id and number, Kafka's form."""

import re
from collections.abc import Iterable
from typing import Final

from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.on_demand import ON_DEMAND_SECONDS
from rlmm_daemon.daemon.metadata.user_partitions import known
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import (
    TopicId,
    TopicIdPartition,
    TopicPartition,
    uuid_bytes,
    uuid_text,
)

_ID: Final = r"(?P<id>[A-Za-z0-9_-]{22})"
_FULL: Final = re.compile(_ID + r":(?P<name>.{1,249})-(?P<number>\d{1,10})")
_ID_AND_NUMBER: Final = re.compile(_ID + r"-(?P<number>\d{1,10})")
_ID_ALONE: Final = re.compile(_ID)
_INT32_MAX: Final = 2**31 - 1


def exact(selector: str) -> TopicIdPartition | None:
    """Return the partition that Kafka's own form names in full, known or not; None if it is not it.

    Raises:
        InvalidArgument: the id or the number cannot be one.
    """
    match = _FULL.fullmatch(selector)
    if match is None:
        return None
    return TopicIdPartition(
        TopicId(uuid_bytes(match["id"])), match["name"], _partition(match["number"])
    )


def means_a_topic(selector: str) -> bool:
    """Whether a selector means every partition of a topic: whoever knows some does not know all."""
    return _ID_ALONE.fullmatch(selector) is not None


def matching(selector: str, candidates: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Return the known partitions that a selector means, ascending; of a topic id alone, all.

    Raises:
        InvalidArgument: it is none of the forms.
    """
    if (full := exact(selector)) is not None:
        return [full]
    wanted = []
    if (match := _ID_ALONE.fullmatch(selector)) is not None:
        topic_id = TopicId(uuid_bytes(match["id"]))
        return sorted(p for p in candidates if p.topic_id == topic_id)
    if (match := _ID_AND_NUMBER.fullmatch(selector)) is not None:
        wanted.append((TopicId(uuid_bytes(match["id"])), _partition(match["number"])))
    try:
        named = TopicPartition.parse(selector)
    except InvalidArgument:
        if not wanted:
            raise InvalidArgument(
                f"{selector!r} names no partition: TOPIC-PARTITION, TOPIC_ID, TOPIC_ID-PARTITION "
                "or TOPIC_ID:TOPIC-PARTITION is wanted"
            ) from None
        return sorted(p for p in candidates if (p.topic_id, p.partition) in wanted)
    return sorted(
        p
        for p in candidates
        if (p.topic, p.partition) == (named.topic, named.partition)
        or (p.topic_id, p.partition) in wanted
    )


def only(selector: str, found: list[TopicIdPartition]) -> TopicIdPartition | None:
    """Return the one partition that was found; None if none was.

    Raises:
        InvalidArgument: several; the message lists them in a form that tells them apart.
    """
    if len(found) > 1:
        forms = ", ".join(f"{uuid_text(p.topic_id)}-{p.partition} ({p.topic})" for p in found[:8])
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""  # noqa: PLR2004 - as above
        raise InvalidArgument(
            f"{selector} names {len(found)} partitions; say which by id: {forms}{more}",
            candidates=[str(p) for p in found],
        )
    return found[0] if found else None


async def find(manager: Manager, selector: str) -> list[TopicIdPartition]:
    """Return the known partitions that a selector means, asking the whole log if need be."""
    found = await _known(manager, selector)
    if not found:
        await manager.on_demand.follow_all(ON_DEMAND_SECONDS)
        found = await _known(manager, selector)
    return found


async def _known(manager: Manager, selector: str) -> list[TopicIdPartition]:
    if named := matching(selector, ()):
        return named  # in full, whether anybody knows it or not
    found = set[TopicIdPartition]()
    for index, some in enumerate(known(manager)):
        if index:
            await manager.turns.wait()
        found.update(matching(selector, some))
    return sorted(found)


def _partition(digits: str) -> int:
    number = int(digits)
    if number > _INT32_MAX:
        raise InvalidArgument(f"{digits} is no partition number")
    return number
