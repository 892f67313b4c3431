"""Every way in, and the rights that suffice."""

import pytest

from tests.kafka.rig import Writer, serving, tp_in
from tests.unit.manager import events

WAYS = [
    ("TLS", "PLAIN"),
    ("MTLS", "PLAIN"),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("SASLTLS", "PLAIN"),
    ("SASLTLS", "SCRAM-SHA-512"),
]
#: As docs/kafka.md lists them; {topic} is the metadata topic.
RIGHTS = [
    ("topic", "{topic}", "describe"),
    ("topic", "{topic}", "read"),
    ("topic", "{topic}", "write"),
    ("topic", "{topic}", "describe_configs"),
]
TO_CREATE = ("topic", "{topic}", "create")


def grant(rig, principal: str, rights: list[tuple[str, str, str]]) -> None:
    for resource, name, operation in rights:
        right = {"resource": resource, "name": name.format(topic=rig.topic)}
        rig.probe.ask("allow", principal=principal, operation=operation, **right)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
async def test_a_copy_is_written_and_found_over_every_listener(rig, listener, mechanism):
    rig.topic += f".{listener}.{mechanism}"
    rig.create()
    if listener == "MTLS":
        grant(rig, "User:CN=rlmm", RIGHTS)
    tp = tp_in(0)
    async with rig.manager(listener=listener, mechanism=mechanism) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        assert writer.acknowledged == [0]


async def test_the_documented_rights_suffice(rig):
    rig.create()
    grant(rig, "User:rlmm", RIGHTS)
    tp = tp_in(0)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        await serving(manager, tp)
        await Writer(manager, tp, base=10).copy(0)


async def test_with_the_right_to_create_the_topic_is_made_too(rig):
    grant(rig, "User:rlmm", [*RIGHTS, TO_CREATE])
    tp = tp_in(0)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)


@pytest.mark.parametrize("missing", ["read", "write"])
async def test_without_a_right_nothing_is_ready_or_written_and_it_comes_with_the_right(
    rig, missing
):
    rig.topic += f".{missing}"
    rig.create()
    grant(rig, "User:rlmm", [right for right in RIGHTS if right[2] != missing])
    tp = tp_in(0)
    rig.probe.produce(rig.topic, 0, [events.started(7, 0, 9, tp)])
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        if missing == "read":
            with pytest.raises(AssertionError, match="not within"):
                await serving(manager, tp, seconds=2)
        else:
            await serving(manager, tp)
        grant(rig, "User:rlmm", RIGHTS)
        await serving(manager, tp)
        await Writer(manager, tp, base=10).copy(0)
