"""`rlmm doctor` against real brokers: what it finds, and what it advises."""

import asyncio
import json
from typing import Any

import pytest

from rlmm_daemon.config import Config
from rlmm_daemon.offline import checkup
from tests.kafka.rig import BROKER, KafkaRig, serving, tp_in
from tests.kafka.test_security import RIGHTS, grant
from tests.unit.daemon import events

AS_RLMM = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}


async def examined(config: Config) -> dict[str, Any]:
    findings = await asyncio.to_thread(checkup.examine, config, seconds=15)
    return {each.check: each for each in findings}


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {name: each.verdict for name, each in found.items()}


async def written(rig: KafkaRig) -> None:
    tp = tp_in(0)
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        await manager.events.add(events.started(1, 0, 9, tp), BROKER)


async def test_a_healthy_topic_is_all_ok(rig):
    rig.create(min_insync_replicas="2")
    await written(rig)
    assert set(verdicts(await examined(rig.config())).values()) == {"ok"}


async def test_a_topic_that_expires_is_a_warning_with_advice(rig):
    rig.create(retention_ms="3600000")
    await written(rig)
    found = await examined(rig.config())
    assert found["topic settings"].verdict == "warning"
    assert "retention.ms" in found["topic settings"].found
    assert found["topic settings"].advice


async def test_a_topic_whose_events_may_be_on_one_disk_alone_is_a_warning_with_advice(rig):
    rig.create(min_insync_replicas="1")
    await written(rig)
    found = (await examined(rig.config()))["durability"]
    assert (found.verdict, "min.insync.replicas is 1" in found.found) == ("warning", True)
    assert found.advice


@pytest.mark.parametrize("missing", [operation for _, _, operation in RIGHTS])
async def test_each_missing_right_is_named_with_the_command_that_grants_it(rig, missing):
    """READ and WRITE imply DESCRIBE, so only without all three the topic is out of sight."""
    rig.topic += f".{missing}"
    rig.create()
    await written(rig)
    without = {missing, "read", "write"} if missing == "describe" else {missing}
    grant(rig, "User:rlmm", [right for right in RIGHTS if right[2] not in without])
    config = rig.config(**AS_RLMM)
    if missing == "describe":
        found = await examined(config)
        assert found["connection"].verdict in ("failed", "warning")
        assert "DESCRIBE" in found["connection"].found + found["connection"].advice
        return
    name = missing.upper()
    rights = await until_found(config, f"missing: {name}")
    assert rights.verdict == ("warning" if missing == "describe_configs" else "failed")
    assert rights.advice.endswith(f"--operation {name.title().replace('_', '')}")
    grant(rig, "User:rlmm", RIGHTS)
    assert (await until_found(config, "READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS")).verdict == "ok"


async def until_found(config: Config, said: str) -> Any:
    """Return the finding about rights that says so: brokers learn of a right in turn."""
    async with asyncio.timeout(60):
        while True:
            rights = (await examined(config)).get("rights")
            if rights is not None and rights.found == said:
                return rights


async def test_a_wrong_password_and_a_closed_port_fail_the_connection(rig):
    rig.create()
    config = rig.config(listener="SASL", mechanism="PLAIN")
    (rig.home / "admin.password").write_text("wrong")
    found = await examined(config)
    assert verdicts(found) == {"connection": "failed"}
    assert "authentication" in found["connection"].found
    assert "wrong" not in found["connection"].found
    (rig.home / "admin.password").write_text("admin-secret")
    closed = rig.config(listener="PROXIED")  # no proxy runs
    assert verdicts(await examined(closed)) == {"connection": "failed"}


async def test_an_absent_topic_and_another_cluster_are_told(rig):
    found = await examined(rig.config())
    assert found["connection"].verdict == "warning"
    assert "restore" in found["connection"].advice
    rig.create()
    elsewhere = {"daemon.cluster_id": "AAAAAAAAAAAAAAAAAAAAAA"}
    while "cluster id" not in found:  # not every broker knows of the new topic at once
        found = await examined(rig.config(settings=elsewhere))
    assert found["cluster id"].verdict == "failed"


async def test_a_recreated_topic_and_an_event_of_the_future_are_told(rig):
    rig.create()
    await written(rig)
    tp = tp_in(1)
    late = bytearray(events.updated(1, tp=tp))
    late[-11:-3] = (10**14).to_bytes(8, "big")
    rig.probe.produce(rig.topic, 1, [bytes(late)])
    assert (await examined(rig.config()))["clocks"].verdict == "warning"
    state = rig.home / "state" / "identity.json"
    known = json.loads(state.read_text())
    state.write_text(json.dumps(known | {"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}))
    assert (await examined(rig.config()))["state directory"].verdict == "failed"


async def test_what_would_be_discovered_is_told(rig, probe):
    rig.create(min_insync_replicas="1")
    await written(rig)
    discover = {"assignment.mode": "discover"}
    nobody = rig.config(settings={**discover, "daemon.broker_id": "77"})
    found = (await examined(nobody))["discovery"]
    assert (found.verdict, "node.id" in found.advice) == ("warning", True)
    tiered = {"remote.storage.enable": "true"}
    where = {"topic": f"{rig.topic}.tiered", "config": tiered, "placement": [[1]]}
    probe.ask("create", **where)
    async with asyncio.timeout(60):
        while (await examined(rig.config(settings=discover)))["discovery"].verdict != "ok":
            pass  # brokers learn of a topic in turn
    assert "discovery" not in await examined(rig.config())


async def test_the_right_that_observing_needs_is_told(rig, probe):
    rig.create(min_insync_replicas="2")
    await written(rig)
    grant(rig, "User:rlmm", RIGHTS)
    (rig.home / "logs").mkdir()
    settings = {
        "cleaner.observe.enabled": "true",
        "daemon.log_dirs": f'["{rig.home}/logs"]',
        "storage.kind": "local",
        "storage.directory": f"{rig.home}/remote",
    }
    config = rig.config(**AS_RLMM, settings=settings)

    async def until_it_is(verdict: str) -> Any:
        async with asyncio.timeout(60):
            while True:  # brokers learn of a right in turn
                found = (await examined(config)).get("observation")
                if found is not None and found.verdict == verdict:
                    return found

    assert "CLUSTER_AUTHORIZATION_FAILED" in (await until_it_is("failed")).found
    right = {"resource": "cluster", "name": "kafka-cluster", "operation": "describe"}
    probe.ask("allow", principal="User:rlmm", **right)
    try:
        assert "3 of 3 brokers" in (await until_it_is("ok")).found
    finally:
        probe.ask("forbid", principal="User:rlmm", **right)
