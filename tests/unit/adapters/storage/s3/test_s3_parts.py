"""The S3 adapter's pieces that need no server: checksums, rates, gates, errors, sizes."""

import asyncio
import errno
import itertools
import json
import os
import random
import re
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.storage.s3 import S3Options, errors, policy
from rlmm_daemon.adapters.storage.s3.errors import Remedy, judge
from rlmm_daemon.adapters.storage.s3.options import MIB, PARTS_MAX
from rlmm_daemon.adapters.storage.s3.probe import ACTIONS
from rlmm_daemon.adapters.storage.s3.rates import TokenBucket
from rlmm_daemon.adapters.storage.s3.reading import (
    JOINS_AT_ONCE,
    PIECE_BYTES,
    SEND_BYTES,
    Reader,
    blocks_read,
    checksum_text,
    checksum_value,
    joined_parts,
    version_of,
)
from rlmm_daemon.adapters.storage.s3.retries import Gate, RetryBudget
from rlmm_daemon.cli.mend import storage as storage_command
from rlmm_daemon.config import load
from rlmm_daemon.core.readiness.marker_verdict import MarkerReason
from rlmm_daemon.core.storage import crc_joining
from rlmm_daemon.core.storage.crc_joining import joined
from rlmm_daemon.daemon.bucket.bucket import OTHER_DAEMON
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ObjectMissing,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.ports import threads
from rlmm_daemon.ports.passes import LOST_REASON
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE, ProbeResult, Source
from tests.contract.storage import Buffer
from tests.simulation.loop import SimLoop, ended
from tests.support.nice import Niced, nice
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, ok, storage_on


@given(st.binary(max_size=300), st.binary(max_size=3000))
def test_the_checksum_of_two_pieces_is_that_of_the_whole(first: bytes, second: bytes):
    found = joined(crc32c(first), crc32c(second), len(second))
    assert found == crc32c(first + second)


async def test_the_checksum_of_many_parts_never_holds_the_loop_for_long(monkeypatch):
    """Counted, not timed: what a look-up would have to wait for between two turns."""
    part, parts = bytes(range(251)), 2_000
    checksums = [crc32c(part)] * (parts - 1) + [crc32c(b"end")]
    in_turn = {"times": 0, "most": 0}
    plain = crc_joining._times

    def counted(left: int, right: int) -> int:
        in_turn["times"] += 1
        in_turn["most"] = max(in_turn["most"], in_turn["times"])
        return plain(left, right)

    async def look_ups() -> None:
        while True:
            in_turn["times"] = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(crc_joining, "_times", counted)
    crc_joining._power.cache_clear()
    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(look_ups())
        found = await joined_parts(checksums, len(part), len(part) * (parts - 1) + 3)
        others.cancel()
    assert found == crc32c(part * (parts - 1) + b"end")
    # Two sizes of parts, and no more than a turn's joins.
    assert in_turn["most"] <= JOINS_AT_ONCE + 2 * 64


def test_a_checksum_is_four_bytes_in_base64_and_one_of_parts_is_none():
    assert checksum_text(crc32c(b"123456789")) == "4waSgw=="
    assert checksum_value("4waSgw==") == 0xE3069283
    for other in (None, "", "4waSgw==-3", "AAAA", "!"):
        assert checksum_value(other) is None


@pytest.mark.parametrize("in_file", [False, True])
async def test_others_have_their_turn_between_the_pieces_of_a_block(tmp_path, in_file):
    """A block that is written at once holds the loop, and each look-up that is due, for as long."""
    size, turns, seen = 3 * SEND_BYTES + 5, 0, []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    reader, body = Reader(1), os.urandom(size)
    (tmp_path / "log").write_bytes(body)
    file = FileSource(os.open(tmp_path / "log", os.O_RDONLY), "log")
    source = file if in_file else Niced(body)
    other = asyncio.get_running_loop().create_task(others())
    pieces = []
    async for piece in blocks_read(reader, source, 0, size):
        pieces.append(bytes(piece))
        seen.append(turns)
    other.cancel()
    if isinstance(source, Niced):
        assert source.seen == {min(nice() + threads.COPY_NICE, 19)}, "its thread comes behind"
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= PIECE_BYTES < SEND_BYTES
    assert all(before < after for before, after in itertools.pairwise(seen))
    file.close()
    reader.close()


class NoThread(Reader):
    """Says which blocks a thread was asked for, and refuses where none may be."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__(1)
        self.refuses, self.asked = refuses, list[int]()

    async def block(self, source: Source, offset: int, length: int) -> bytes:
        assert not self.refuses
        self.asked.append(offset)
        return await super().block(source, offset, length)


@pytest.mark.parametrize("told", ["all", "half", "not there", "not known", "cut"])
async def test_what_is_in_the_page_cache_is_sent_without_asking_a_thread(
    tmp_path, monkeypatch, told
):
    body = os.urandom(SEND_BYTES + PIECE_BYTES + 7)
    (tmp_path / "log").write_bytes(body)
    source = FileSource(os.open(tmp_path / "log", os.O_RDONLY), "log")
    plain = os.preadv

    def preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT, "the loop waits for no disk"
        if told.startswith("not"):
            raise OSError(errno.EAGAIN if told == "not there" else errno.EOPNOTSUPP, "")
        into = memoryview(buffers[0])
        return plain(descriptor, [into[: len(into) // 2 + 1] if told == "half" else into], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    reader = NoThread(refuses=told in {"all", "half"})
    if told == "cut":
        os.truncate(tmp_path / "log", PIECE_BYTES)
        with pytest.raises(ChecksumMismatch):
            _ = [piece async for piece in blocks_read(reader, source, 0, len(body))]
    else:
        pieces = [bytes(piece) async for piece in blocks_read(reader, source, 3, len(body) - 3)]
        assert b"".join(pieces) == body[3:]
        assert max(map(len, pieces)) <= PIECE_BYTES
    assert reader.asked == {"not": [3, 3 + SEND_BYTES], "cut": [PIECE_BYTES]}.get(told[:3], [])
    source.close()
    reader.close()


async def test_a_read_that_a_disk_holds_keeps_its_thread_and_no_caller(monkeypatch):
    freed, returned = threading.Event(), threading.Event()

    class Hung(Buffer):
        def pread(self, offset: int, length: int) -> bytes:
            freed.wait(30)
            returned.set()
            return super().pread(offset, length)

    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.1)
    reader = Reader(1)
    first = asyncio.get_running_loop().create_task(reader.block(Hung(b"abc"), 0, 3))
    second = asyncio.get_running_loop().create_task(reader.checksum(Buffer(b"abc"), 0, 3))
    await asyncio.sleep(0)
    for each in (first, second):  # the second has no thread yet
        each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await each
    assert not returned.is_set()
    freed.set()
    assert await reader.block(Buffer(b"abc"), 1, 1) == b"b"
    reader.close()


def test_a_file_that_cannot_be_looked_at_is_an_error_of_ours(tmp_path, monkeypatch):
    class Held:
        size = 3

        def __init__(self, descriptor: int) -> None:
            self.descriptor = descriptor

        def fileno(self) -> int:
            return self.descriptor

        def pread(self, offset: int, length: int) -> bytes:
            return os.pread(self.descriptor, length, offset)

    def stale(_: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    (tmp_path / "a").write_bytes(b"abc")
    with (tmp_path / "a").open("rb") as file:
        source = Held(file.fileno())
        assert version_of(source) is not None
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", stale)
            with pytest.raises(StorageUnavailable, match=os.strerror(errno.ESTALE)) as caught:
                version_of(source)
        assert caught.value.fields["reason"] == "source_unreadable"


@given(st.integers(min_value=1, max_value=5 * 1024 * 1024 * MIB))
def test_parts_are_never_more_than_s3_takes(size: int):
    part = S3Options(bucket="b").part_size(size)
    assert -(-size // part) <= PARTS_MAX
    assert part >= 64 * MIB


def client_error(status: int, code: str, **headers: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "m"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        },
        "Operation",
    )


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        (client_error(403, "AccessDenied"), "denied", Remedy.NONE),
        (client_error(403, "403"), "denied", Remedy.NONE),
        (client_error(404, "404"), "bare_404", Remedy.NONE),
        (client_error(404, "NoSuchBucket"), "no_bucket", Remedy.NONE),
        (client_error(404, "XAdminUserNotFound"), "bad_credentials", Remedy.RELOAD),
        (client_error(400, "ExpiredToken"), "expired_credentials", Remedy.RELOAD),
        (client_error(403, "RequestTimeTooSkewed"), "clock_skew", Remedy.NONE),
        (client_error(301, "301"), "wrong_region", Remedy.NONE),
        (client_error(503, "Odd"), "throttled", Remedy.SLOWER),
        (client_error(500, "Odd"), "server_error", Remedy.AGAIN),
        (client_error(400, "BadDigest"), "damaged_in_transit", Remedy.AGAIN),
        (client_error(400, "KMS.AnythingException"), "kms", Remedy.NONE),
        (client_error(400, "Odd"), "refused", Remedy.NONE),
        (NoCredentialsError(), "no_credentials", Remedy.NONE),
        (ReadTimeoutError(endpoint_url="x"), "timeout", Remedy.AGAIN),
        (TimeoutError(), "timeout", Remedy.AGAIN),
        (ConnectionResetError(), "connection", Remedy.AGAIN),
    ],
)
def test_each_answer_has_its_word_and_its_remedy(error, reason, remedy):
    verdict = judge(error, "PutObject", bucket="b", key="k")
    assert type(verdict.error) is StorageUnavailable
    assert (verdict.error.fields["reason"], verdict.remedy) == (reason, remedy)
    assert verdict.error.fields.get("retry") is (False if remedy is Remedy.NONE else None)


def test_only_no_such_key_is_missing_and_a_full_storage_is_full():
    assert isinstance(
        judge(client_error(404, "NoSuchKey"), "GetObject", bucket="b", key="k").error, ObjectMissing
    )
    assert isinstance(judge(client_error(507, "507"), "PutObject", bucket="b").error, StorageFull)
    wrong = client_error(301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-west-1"})
    assert judge(wrong, "PutObject", bucket="b").error.fields["region"] == "eu-west-1"


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("9999", 60.0), ("Fri, 1 Jan", None)])
def test_the_servers_wish_to_wait_is_heard_within_reason(text: str, seconds: float | None):
    error = client_error(503, "SlowDown", **{"retry-after": text})
    assert judge(error, "PutObject", bucket="b").retry_after == seconds


def test_a_repeat_waits_for_as_long_as_the_server_wishes():
    at: list[float] = []

    def put(**_: Any) -> Any:
        at.append(asyncio.get_running_loop().time())
        if len(at) == 1:
            raise client_error(503, "SlowDown", **{"retry-after": "7"})
        return ok(ETag="e")

    async def main() -> None:
        storage = storage_on(ScriptedS3(put_object=put))
        await storage.overwrite_control("a", b"1")
        await storage.close()

    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main())
    assert len(at) == 2
    assert at[1] - at[0] >= 7


async def test_a_gate_lets_in_no_more_than_its_limit_and_forgets_who_left():
    gate, inside, most = Gate(4), 0, 0

    async def visit() -> None:
        nonlocal inside, most
        async with gate.turn():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(visit()) for _ in range(40)]
        await asyncio.sleep(0)
        for task in random.Random(3).sample(tasks[4:], 15):
            task.cancel()
    assert most == 4
    assert gate.inside == 0
    gate.slower()
    gate.slower()
    assert gate.limit == 2, "told together, counted once"


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main)


def test_a_rate_holds_over_time_and_a_change_is_felt_by_who_waits():
    async def main() -> None:
        loop, bucket = asyncio.get_running_loop(), TokenBucket(100)
        for _ in range(11):
            await bucket.take(100)
        # The first second was saved up, the last take is in debt.
        assert loop.time() == pytest.approx(9, abs=0.2)
        bucket.set_rate(1)
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(bucket.take(1))
            await asyncio.sleep(0.5)
            bucket.set_rate(0)
            await waiting
        assert loop.time() - begun < 2

    in_virtual_time(main())


def test_a_take_larger_than_the_rate_does_not_wait_for_ever():
    async def main() -> None:
        bucket = TokenBucket(10)
        await bucket.take(1_000)
        begun = asyncio.get_running_loop().time()
        await bucket.take(1)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(99, abs=1)

    in_virtual_time(main())


def test_a_budget_lets_everybody_stop_and_recovers_slowly():
    budget = RetryBudget()
    while budget.take():
        pass
    for _ in range(11):
        budget.succeeded()
    assert budget.take()
    assert not budget.take()


@pytest.mark.parametrize(
    ("environment", "proxy", "expected"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": "http://p:1"}, None, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "s3.example"}, None, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "s3.example"}, "http://q:2", "http://q:2"),
    ],
)
async def test_without_a_proxy_of_its_own_the_environments_is_used(
    monkeypatch, environment, proxy, expected
):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        for each in (name, name.lower()):
            monkeypatch.delenv(each, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    endpoint = "http://s3.example:9"
    storage = storage_on(None, endpoint=endpoint, proxy=proxy)
    await storage._client._connected()
    session = storage._client.s3._endpoint.http_session
    assert session._proxy_config.proxy_url_for(endpoint) == expected
    await storage.close()


def test_every_reason_that_an_operator_meets_is_on_paper():
    root = Path(__file__).parents[5]
    rooms = (root / "rlmm_daemon" / "adapters" / "storage" / "s3", root / "rlmm_daemon" / "daemon")
    code = "".join(file.read_text() for room in rooms for file in sorted(room.rglob("*.py")))
    reasons = {row.reason for row in vars(errors).values() if isinstance(row, errors._Row)}
    assert len(reasons) > 20
    reasons |= {
        SOURCE_UNREADABLE,
        LOST_REASON,
        OTHER_DAEMON,
        *(reason.value for reason in MarkerReason),
    }
    reasons |= {*re.findall(r'reason="(\w+)"', code)}
    page = (root / "docs" / "s3.md").read_text().partition("## When it does not work")[2]
    on_paper = {
        word
        for line in page.splitlines()
        if line.startswith("| `")
        for word in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert on_paper - {"reason"} == reasons


def test_a_policy_names_the_bucket_for_lists_and_its_objects_for_the_rest():
    found = policy("b", ["list", "put", "abort"], kms_key_id="arn:k")
    assert [(each["Resource"], each["Action"]) for each in found["Statement"]] == [
        ("arn:aws:s3:::b", ["s3:ListBucket"]),
        (
            "arn:aws:s3:::b/*",
            ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject"],
        ),
        ("arn:k", ["kms:GenerateDataKey", "kms:Decrypt"]),
    ]


def test_a_policy_for_tagged_objects_allows_tagging_where_objects_are_written():
    (statement,) = policy("b", ["multipart"], tags=True)["Statement"]
    assert statement["Action"] == ["s3:PutObject", "s3:PutObjectTagging"]
    (statement,) = policy("b", ["head"], tags=True)["Statement"]
    assert statement["Action"] == ["s3:GetObject"]


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("us-iso-east-1", "aws-iso"),
        ("eu-west-1", "aws"),
        ("garage", "aws"),
    ],
)
def test_a_policy_is_of_the_regions_own_world_and_names_a_key_whole(region, partition):
    found = policy("b", ["put"], region=region, kms_key_id="k-1")
    assert [each["Resource"] for each in found["Statement"]] == [
        f"arn:{partition}:s3:::b/*",
        f"arn:{partition}:kms:{region}:*:key/k-1",
    ]


def test_the_doctors_policy_is_for_the_configured_bucket_region_key_and_tags(tmp_path):
    file = tmp_path / "rlmm.toml"
    file.write_text(
        """
[daemon]
broker_id = 1
cluster_id = "c"
log_dirs = ["/l"]
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "b-1"
region = "cn-north-1"
sse = "aws:kms"
sse_kms_key = "k-1"
tags = ["kind=tiered"]
"""
    )
    denied = StorageUnavailable("no", reason="denied")
    assert storage_command._policy(
        load(str(file), ()), ProbeResult(results={"put": denied})
    ) == policy("b-1", ["put"], region="cn-north-1", kms_key_id="k-1", tags=True)


def test_the_policy_on_paper_is_the_one_for_everything_that_the_probe_tries():
    page = (Path(__file__).parents[5] / "docs" / "s3.md").read_text()
    on_paper = json.loads(page.partition("### Policy")[2].partition("```json")[2].split("```")[0])
    assert on_paper == policy("my-tiered-segments", ACTIONS)
