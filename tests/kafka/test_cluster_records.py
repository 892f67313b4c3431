"""Records of `__cluster_metadata`, against Kafka's own classes: every type, every version."""

import base64
import json
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pytest

from deploy.dev.stack.kafka.cluster import quick
from rlmm_daemon.codec.kraft import cluster_records, schema
from rlmm_daemon.codec.kraft.cluster_records import TABLES, Kind, Passed, Record
from rlmm_daemon.codec.kraft.schema import Array, Field, Fields
from tests.kafka.probe import java_of_ours

DRAWN = 40
VERSIONS = [
    (kind, version) for kind, table in TABLES.items() for version in range(table.newest + 1)
]


class Kafkas:
    """A JVM with ClusterRecords.java."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*java_of_ours("-Xmx64m", *quick()), "ClusterRecords"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"it ended at {asked}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def packed(self, **asked: Any) -> bytes:
        return bytes.fromhex(self.ask(**asked)["hex"])


@pytest.fixture(scope="module")
def kafkas() -> Iterator[Kafkas]:
    with Kafkas() as running:
        yield running


def test_every_type_of_this_kafka_is_known_and_none_beside(kafkas):
    types = kafkas.ask(types=True)["types"]
    named = {each["key"]: each["name"].removesuffix("_RECORD") for each in types}
    assert named == {int(kind): kind.name for kind in Kind}
    newest = {each["key"]: each["newest"] for each in types}
    assert {kind: newest[kind] for kind in TABLES} == {k: t.newest for k, t in TABLES.items()}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in TABLES])
def test_a_type_that_says_nothing_of_topics_or_brokers_is_passed_over(kafkas, kind):
    assert cluster_records.read(kafkas.packed(key=kind, version=0)) == Passed(kind, known=True)


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_kafka_reads_what_is_packed_here_and_packs_the_same_bytes(kafkas, kind, version):
    fields, luck = TABLES[kind].fields, random.Random(f"{kind} {version}")
    assert cluster_records.read(kafkas.packed(key=kind, version=version)) == Record(
        kind, fields.full({}, version)
    )
    for _ in range(DRAWN):
        drawn = drawn_fields(luck, fields, version)
        mine = cluster_records.pack(Record(kind, drawn), version)
        said = kafkas.ask(hex=mine.hex())
        assert (said["key"], said["version"]) == (kind, version)
        assert kafkas.packed(key=kind, version=version, fields=as_json(drawn)) == mine
        assert kafkas.packed(**said) == mine
        assert cluster_records.read(mine) == Record(kind, fields.full(drawn, version))


# Fields, drawn, and as Kafka's JSON has them.


def drawn_fields(luck: random.Random, fields: Fields, version: int) -> dict[str, Any]:
    here = [each for each in fields.fields if each.since <= version <= each.until]
    return {each.name: drawn_value(luck, each, version) for each in here}


def drawn_value(luck: random.Random, field: Field, version: int) -> Any:
    if luck.random() < 0.2:
        return field.usual
    return drawn(luck, field.type, version)


def drawn(luck: random.Random, kind: Any, version: int) -> Any:
    if isinstance(kind, Fields):
        return drawn_fields(luck, kind, version)
    if isinstance(kind, Array):
        if isinstance(kind._of, Fields):  # Kafka keeps these by name
            rows = [drawn(luck, kind._of, version) for _ in range(luck.randrange(3))]
            return tuple({row["Name"]: row for row in rows}.values())
        return tuple(drawn(luck, kind._of, version) for _ in range(luck.randrange(3)))
    return _PLAIN[id(kind)](luck)


def whole(bits: int) -> Callable[[random.Random], int]:
    return lambda luck: luck.randrange(-(1 << bits - 1), 1 << bits - 1)


def text(luck: random.Random) -> str:
    return "".join(luck.choices("a\u00e9\u4e2d\U0001f600.-_9", k=luck.randrange(40)))


_PLAIN: Mapping[int, Callable[[random.Random], Any]] = {
    id(schema.INT8): whole(8),
    id(schema.INT16): whole(16),
    id(schema.INT32): whole(32),
    id(schema.INT64): whole(64),
    id(schema.UINT16): lambda luck: luck.randrange(1 << 16),
    id(schema.BOOL): lambda luck: luck.random() < 0.5,
    id(schema.UUID): lambda luck: luck.randbytes(16),
    id(schema.STRING): text,
    id(schema.NULLABLE_STRING): text,
}


def as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: as_json(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return value
