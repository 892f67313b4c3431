"""Byte equality with Kafka's own serde, both ways, and what Kafka's tools make of our files."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.adapters.event_log.embedded.repair import seal
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import formatter, records
from rlmm_daemon.domain.ids import MetadataPartition
from tests.kafka.probe import Probe, ProbeError
from tests.unit.daemon.events import started, updated

DATA = Path(__file__).parents[1] / "data"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_kafka_writes_each_golden_record_as_we_do(probe: Probe):
    compared = 0
    for row in [*rows("golden/records.jsonl"), *rows("segments/metadata.jsonl")]:
        value = bytes.fromhex(row["hex"])
        if records.peek(value) is records.ApiKey.SEGMENT_SNAPSHOT:
            continue
        ours = records.encode(records.decode(value))
        theirs = probe.ask("reserialize", hex=value.hex())["hex"]
        assert ours.hex() == theirs, row
        assert probe.ask("reserialize", hex=ours.hex())["hex"] == theirs
        compared += 1
    assert compared > 50


def test_tail_prints_what_kafkas_formatter_prints(probe: Probe):
    for offset, row in enumerate([*rows("golden/records.jsonl"), *rows("segments/metadata.jsonl")]):
        value = bytes.fromhex(row["hex"])
        theirs = probe.ask("format", partition=3, offset=offset, hex=value.hex())["text"]
        assert formatter.line(3, offset, value) == theirs.rstrip("\n")


def test_what_ends_kafkas_formatter_is_a_line_of_ours(probe: Probe):
    for value in (b"", b"\x01\x63\x00", b"\x02\x00\x00"):
        with pytest.raises(ProbeError):
            probe.ask("format", partition=0, offset=0, hex=value.hex())
        assert formatter.line(0, 7, value) == f"partition: 0, offset: 7, value: {value.hex()}"
    assert formatter.line(0, 7, None) == "partition: 0, offset: 7, value: null"


async def test_kafkas_dump_tool_reads_sealed_files_of_the_embedded_log(kafka_cluster, tmp_path):
    disk = LocalDisk()
    partition = MetadataPartition(0)
    values = [started(1, 0, 9), updated(1), started(2, 10, 19)]
    async with asyncio.TaskGroup() as group:
        log = EmbeddedLog(
            disk=disk,
            clock=SystemClock(),
            spawn=lambda work, name: group.create_task(work, name=name),
            luck=random.Random(1),
            directory=str(tmp_path),
            partition_count=1,
        )
        await log.open(create=True)
        for value in values:
            await log.append(partition, value)
        await seal(log)
        await log.close()
    disk.close()
    sealed = min((tmp_path / "0").glob("*.log"))
    assert sealed.stat().st_size
    said = await asyncio.to_thread(
        kafka_cluster.tool,
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--print-data-log",
        "--remote-log-metadata-decoder",
        "--files",
        str(sealed),
    )
    shown = [line for line in said.splitlines() if line.startswith("| offset:")]
    assert len(shown) == len(values), said
    for line, value in zip(shown, values, strict=True):
        assert formatter.text(records.decode(value)) in line
    assert "isvalid: true" in said
    assert "isvalid: false" not in said
