"""Every fault on the way to a real server: nothing half-visible, nothing left, nothing held."""

import asyncio
import contextlib
import gc
import hashlib
import os
import tracemalloc
from collections import Counter
from copy import copy
from typing import Any

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from deploy.dev.stack.fault_proxy import Fault, Kind
from rlmm_daemon.adapters.storage.s3 import Rates, leftovers, policy, through_obstore
from rlmm_daemon.codec.marker import Presence, encode, presence_key
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ConfigError,
    ObjectMissing,
    RlmmError,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import Conflict, ObjectKind, Progress, Version
from tests.contract.storage import SEGMENT, Buffer, body, keys, read, segment, uploads
from tests.support.s3_world import (
    S3World,
    keys_of,
    needs_s3,
    open_descriptors,
    s3_server,
    through_each,
    transport,
    until,
)

pytestmark = needs_s3
__all__ = ["s3_server", "transport"]
MIB = 1024 * 1024
LOG = f"{SEGMENT}.log"
#: Three parts.
BODY = hashlib.shake_128(b"segment").digest(11 * MIB)
#: The deadlines of a test that has to reach them.
SHORT: dict[str, Any] = {
    "read_timeout": 3.0,
    "call_timeout": 5.0,
    "attempts_max": 1,
}
SLOW = {Kind.BLACK_HOLE, Kind.TRICKLE}


@pytest.fixture
async def world(s3_server, transport):
    """A bucket; whatever happened to it, every descriptor is given back."""
    world = S3World(s3_server, transport=transport)
    before = open_descriptors()
    await world.start_proxy()
    yield world
    await world.aclose()
    await until(lambda: open_descriptors() <= before or forgotten(before), seconds=30)


def forgotten(before: int) -> bool:
    """Return whether what is too many was only not collected yet."""
    gc.collect()
    return open_descriptors() <= before


def fault(kind: Kind, operation: str = ".*", **more: Any) -> Fault:
    return Fault(kind=kind, operation=operation, **more)


def answer(status: int, code: str, operation: str, **more: Any) -> Fault:
    return Fault(kind=Kind.ANSWER, operation=operation, status=status, code=code, **more)


#: What passes: after so many faults the copy is there and right.
PASSING = {
    "latency": fault(Kind.LATENCY, seconds=0.05),
    "bandwidth": fault(Kind.BANDWIDTH, "UploadPart", times=1, rate=20 * MIB),
    "reset of a create": fault(Kind.RESET, "CreateMultipartUpload", times=1),
    "reset of a part": fault(Kind.RESET, "UploadPart", times=2),
    "cut in a part": fault(Kind.CUT_REQUEST, "UploadPart", times=1, after=2 * MIB),
    "cut in a put": fault(Kind.CUT_REQUEST, "PutObject", times=1, after=10),
    "damaged part": fault(Kind.DAMAGE_REQUEST, "UploadPart", times=1),
    "damaged put": fault(Kind.DAMAGE_REQUEST, "PutObject", times=1),
    "lost answer of a create": fault(Kind.LOSE_ANSWER, "CreateMultipartUpload", times=1),
    "lost answer of a part": fault(Kind.LOSE_ANSWER, "UploadPart", times=1),
    "lost answer of a put": fault(Kind.LOSE_ANSWER, "PutObject", times=1),
    "lost answer of a complete": fault(Kind.LOSE_ANSWER, "CompleteMultipartUpload", times=1),
    "500": answer(500, "InternalError", "UploadPart|PutObject", times=2),
    "503": answer(503, "SlowDown", "UploadPart", times=2),
    "503 with Retry-After": answer(
        503, "SlowDown", "UploadPart", times=1, headers={"Retry-After": "1"}
    ),
    "200 with an error as a complete": answer(
        200, "InternalError", "CompleteMultipartUpload", times=1
    ),
    "200 with an error as a part": answer(200, "InternalError", "UploadPart", times=1),
    "200 with an error as a create": answer(200, "InternalError", "CreateMultipartUpload", times=1),
    "trickle of an answer": fault(Kind.TRICKLE, "CreateMultipartUpload", seconds=0.01),
    "silence once": fault(Kind.BLACK_HOLE, "HeadObject", times=1),
}
#: What fails: the error, and one word for programs.
FAILING: dict[str, tuple[Fault, type[RlmmError], str]] = {
    "403 in mid-copy": (
        answer(403, "AccessDenied", "UploadPart", skip=1),
        StorageUnavailable,
        "denied",
    ),
    "404 on complete": (
        answer(404, "NoSuchUpload", "CompleteMultipartUpload"),
        StorageUnavailable,
        "no_upload",
    ),
    "bare 404": (answer(404, "Odd", "UploadPart"), StorageUnavailable, "bare_404"),
    "500 for ever": (
        answer(500, "InternalError", "UploadPart"),
        StorageUnavailable,
        "server_error",
    ),
    "503 for ever": (answer(503, "SlowDown", "UploadPart"), StorageUnavailable, "throttled"),
    "damage for ever": (
        fault(Kind.DAMAGE_REQUEST, "UploadPart"),
        StorageUnavailable,
        "damaged_in_transit",
    ),
    "wrong checksum reported": (
        fault(Kind.WRONG_CHECKSUM, "HeadObject", key=r"\.log$"),
        ChecksumMismatch,
        "",
    ),
    "wrong checksum of a companion": (
        fault(Kind.WRONG_CHECKSUM, "HeadObject", key=r"\.timeindex$"),
        ChecksumMismatch,
        "",
    ),
    "no answer to the check": (
        answer(500, "InternalError", "HeadObject", key=r"\.log$"),
        StorageUnavailable,
        "server_error",
    ),
    "200 that stored nothing": (
        answer(200, "InternalError", "PutObject", key=r"\.index$"),
        StorageUnavailable,
        "server_error",
    ),
    "silence to a part": (fault(Kind.BLACK_HOLE, "UploadPart"), StorageUnavailable, "timeout"),
    "silence to a put": (fault(Kind.BLACK_HOLE, "PutObject"), StorageUnavailable, "timeout"),
    "silence to a complete": (
        fault(Kind.BLACK_HOLE, "CompleteMultipartUpload"),
        StorageUnavailable,
        "timeout",
    ),
    "a trickle without end": (
        fault(Kind.TRICKLE, "CreateMultipartUpload", seconds=0.5, after=16),
        StorageUnavailable,
        "timeout",
    ),
    "resets for ever": (fault(Kind.RESET), StorageUnavailable, "connection"),
    "lost answers of creates": (
        fault(Kind.LOSE_ANSWER, "CreateMultipartUpload"),
        StorageUnavailable,
        "connection",
    ),
    "no bucket": (answer(404, "NoSuchBucket", "UploadPart"), StorageUnavailable, "no_bucket"),
    "wrong region": (
        answer(400, "AuthorizationHeaderMalformed", "CreateMultipartUpload"),
        StorageUnavailable,
        "wrong_region",
    ),
    "clock skew": (
        answer(403, "RequestTimeTooSkewed", "UploadPart"),
        StorageUnavailable,
        "clock_skew",
    ),
    "expired credentials": (
        answer(400, "ExpiredToken", "UploadPart"),
        StorageUnavailable,
        "expired_credentials",
    ),
    "full": (answer(507, "InsufficientStorage", "UploadPart"), StorageFull, "full"),
}


async def settled(world: S3World, storage: Any) -> None:
    """Prove that nothing of a copy is left, once the fault is gone."""
    assert world.proxy is not None
    world.proxy.lift()
    await unsuspected(storage)
    await until(lambda: world.quiet(storage))
    assert world.uploads_left() == []


@pytest.fixture(autouse=True)
def late_creates(monkeypatch):
    """A create that nobody heard of is waited for no longer than the proxy holds one back."""
    monkeypatch.setattr(leftovers, "LATE_SECONDS", 2.0)


async def unsuspected(storage: Any) -> None:
    """Let the storage look until it suspects no key any more; pytest's own timeout bounds it."""
    await storage.open()
    while storage.suspects:
        await asyncio.sleep(0.1)
        await storage.open()


@pytest.mark.parametrize("name", PASSING)
async def test_a_passing_fault_ends_in_a_right_copy(world, name):
    storage = await world.open(**({"read_timeout": 3.0} if name == "silence once" else {}))
    world.proxy.plant(each := copy(PASSING[name]))
    stored = await storage.put_segment(segment(Buffer(BODY)), progress=(made := Progress()))
    assert each.hits
    assert stored[-1].crc32c == crc32c(BODY)
    assert made.bytes_done == made.bytes_total
    world.proxy.lift()
    assert await read(storage, LOG) == BODY
    await settled(world, storage)
    await storage.close()


@pytest.mark.parametrize("name", FAILING)
async def test_a_lasting_fault_ends_in_its_own_error_and_leaves_nothing(world, name):
    planted, kind, reason = FAILING[name]
    storage = await world.open(**(SHORT if planted.kind in SLOW else {"attempts_max": 2}))
    world.proxy.plant(each := copy(planted))
    with pytest.raises(kind) as failure:
        await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    assert each.hits
    assert failure.value.fields.get("reason", "") == reason
    if reason in {"denied", "no_bucket", "wrong_region", "clock_skew", "full"}:
        assert each.hits <= 2, "not retried blindly: at most once for each part in flight"
        assert failure.value.fields["retry"] is False
    await settled(world, storage)
    assert LOG not in world.keys_there()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    assert await read(storage, LOG) == BODY
    await storage.close()


async def test_an_upload_to_a_silent_peer_ends_though_nobody_ever_says_continue(world):
    """The stack would wait for `100 Continue` for ever, whatever its read timeout says."""
    storage = await world.open(**SHORT)
    world.proxy.plant(fault(Kind.BLACK_HOLE, "PutObject|UploadPart"))
    with pytest.raises(StorageUnavailable) as failure:
        await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    assert failure.value.fields["reason"] == "timeout"
    await settled(world, storage)
    assert world.proxy.hesitant == 0
    await storage.close()


async def test_one_call_is_one_request_on_the_wire(world):
    """aiohttp would repeat a PUT whose connection is cut, and nobody would know."""
    storage = await world.open(attempts_max=1)
    before = world.proxy.calls["PutObject"]
    world.proxy.plant(fault(Kind.LOSE_ANSWER, "PutObject"))
    with pytest.raises(StorageUnavailable):
        await storage.overwrite_control("_rlmm/one", b"1")
    assert world.proxy.calls["PutObject"] == before + 1
    await storage.close()


async def test_a_conditional_write_whose_answer_was_lost_is_no_conflict_with_itself(world):
    storage = await world.open()
    world.proxy.plant(fault(Kind.LOSE_ANSWER, "PutObject", times=1))
    etag = await storage.put_control("_rlmm/m", b"mine", if_etag=None)
    assert (await storage.get_control("_rlmm/m")).etag == etag
    with pytest.raises(Conflict):
        await storage.put_control("_rlmm/m", b"mine", if_etag=None)
    world.proxy.plant(fault(Kind.LOSE_ANSWER, "PutObject", times=1))
    await storage.put_control("_rlmm/m", b"newer", if_etag=etag)
    assert (await storage.get_control("_rlmm/m")).data == b"newer"
    await storage.close()


@through_each
@pytest.mark.parametrize(
    "planted",
    [
        fault(Kind.CUT_ANSWER, "GetObject", times=2, after=3 * MIB + 7),
        fault(Kind.SHORT_ANSWER, "GetObject", times=2, after=MIB),
        fault(Kind.RESET, "GetObject", times=2),
        answer(500, "InternalError", "GetObject", times=2),
        answer(503, "SlowDown", "GetObject", times=1),
        answer(200, "InternalError", "GetObject", times=1),
        fault(Kind.BANDWIDTH, "GetObject", times=1, rate=40 * MIB),
    ],
    ids=lambda each: f"{each.kind.name} {each.status}",
)
async def test_a_read_goes_on_where_it_was_cut(world, planted):
    """A cut body raises past botocore's retries: whoever reads has to resume."""
    storage = await world.open()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    world.proxy.plant(each := copy(planted))
    assert await read(storage, LOG, 1, len(BODY) - 1) == BODY[1:-1]
    assert each.hits
    await until(lambda: world.quiet(storage))
    await storage.close()


@through_each
async def test_a_silent_read_ends_at_its_deadline(world):
    storage = await world.open(**SHORT)
    await storage.put_segment(segment(), progress=Progress())
    world.proxy.plant(fault(Kind.BLACK_HOLE, "GetObject"))
    with pytest.raises(StorageUnavailable) as failure:
        await read(storage, LOG)
    assert failure.value.fields["reason"] == "timeout"
    await storage.close()


@through_each
async def test_an_object_replaced_between_two_ranges_is_never_mixed(world):
    storage = await world.open()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    world.proxy.plant(fault(Kind.CUT_ANSWER, "GetObject", times=1, after=MIB))
    world.proxy.plant(fault(Kind.OTHER_ETAG, "GetObject"))
    with pytest.raises(ChecksumMismatch):
        await read(storage, LOG)
    world.proxy.lift()
    version = Version()
    async with contextlib.aclosing(storage.fetch_version(LOG, 0, 9, version)) as pieces:
        assert b"".join([piece async for piece in pieces]) == BODY[:9]
    await storage.put_segment(segment(Buffer(BODY[1:])), progress=Progress())
    with pytest.raises(ChecksumMismatch):
        async with contextlib.aclosing(storage.fetch_version(LOG, 9, 20, version)) as pieces:
            _ = [piece async for piece in pieces]
    await storage.close()


@through_each
async def test_a_read_that_trickles_ends_though_it_is_never_silent(world, monkeypatch):
    """Each piece is in time; the whole would hold its connection for an hour."""
    # Waited for beyond the deadline, at 64 KiB/s.
    monkeypatch.setattr(through_obstore, "PIECE_BYTES", 64 * 1024)
    storage = await world.open()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    impatient = await world.new(call_timeout=3.0)
    world.proxy.plant(planted := fault(Kind.TRICKLE, "GetObject", seconds=0.3))
    with pytest.raises(StorageUnavailable) as failure:
        await read(impatient, LOG)
    assert failure.value.fields["reason"] == "slow"
    assert planted.hits == 1, "who asks again is whoever still wants it"
    assert impatient.stats.calls["GetObject", "slow"] == 1
    await until(lambda: world.quiet(impatient))
    world.proxy.lift()
    assert await read(impatient, LOG) == BODY
    await impatient.close()
    await storage.close()


@through_each
async def test_an_answer_without_its_length_is_asked_for_again(world):
    storage = await world.open(attempts_max=2)
    await storage.put_segment(segment(), progress=Progress())
    for operation in ("HeadObject", "GetObject"):
        world.proxy.plant(planted := fault(Kind.NO_LENGTH, operation, times=1))
        assert await storage.size(LOG) == len(body(ObjectKind.LOG))
        assert await read(storage, LOG, 3, 9) == body(ObjectKind.LOG)[3:9]
        assert planted.hits == 1
    world.proxy.plant(fault(Kind.NO_LENGTH, "HeadObject|GetObject"))
    for call in (storage.size(LOG), read(storage, LOG), storage.get_control(LOG)):
        with pytest.raises(StorageUnavailable):
            await call
    await until(lambda: world.quiet(storage))
    await storage.close()


@pytest.mark.parametrize("page", [b"", b"<html><body>welcome</body></html>"], ids=["none", "other"])
async def test_a_200_with_nobodys_body_is_no_empty_listing_and_no_delete(world, page):
    """Read as XML it says nothing: no objects, no uploads, no failures."""
    storage = await world.open(attempts_max=2)
    await storage.put_segment(segment(), progress=Progress())
    world.proxy.plant(
        planted := answer(200, "", "DeleteObjects|ListObjectsV2|ListMultipartUploads", body=page)
    )
    # A server that answers nothing at all to a whole batch is asked for each key: so it is here.
    world.proxy.plant(foreign := answer(200, "", "DeleteObject", body=page))
    outcome = await storage.delete([LOG, f"{SEGMENT}.index"])
    assert foreign.hits == (0 if page else 4)
    assert {type(error) for error in outcome.values()} == {StorageUnavailable}
    for call in (keys(storage), uploads(storage), storage.open()):
        with pytest.raises(StorageUnavailable) as failure:
            await call
        assert failure.value.fields["reason"] == "server_error"
    # Each is tried again, the `.log` apart from its companions; but no batch that is not known.
    assert planted.hits == (10 if page else 8)
    world.proxy.lift()
    assert LOG in await keys(storage)
    assert await storage.delete([LOG]) == {LOG: None}
    await storage.close()


@through_each
@pytest.mark.parametrize("code", ["Odd", "NoSuchBucket", "NoSuchUpload"])
async def test_a_404_that_is_not_no_such_key_never_says_that_an_object_is_gone(world, code):
    storage = await world.open()
    world.proxy.plant(answer(404, code, "HeadObject|GetObject"))
    for call in (storage.size("x"), read(storage, "x"), storage.get_control("x")):
        with pytest.raises(StorageUnavailable):
            await call
    world.proxy.lift()
    assert await storage.size("x") is None
    with pytest.raises(ObjectMissing):
        await read(storage, "x")
    await storage.close()


@through_each
async def test_a_reader_that_sleeps_holds_no_connection_and_goes_on_when_it_wakes(world):
    storage = await world.open(idle_timeout=0.2)
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    async with contextlib.aclosing(storage.fetch(LOG, 0, len(BODY))) as pieces:
        got = [await anext(pieces)]
        await until(lambda: world.proxy.open_requests == 0)
        got += [piece async for piece in pieces]
    assert b"".join(got) == BODY
    await storage.close()


@through_each
async def test_a_reader_that_leaves_frees_its_connection(world):
    storage = await world.open()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    async with contextlib.aclosing(storage.fetch(LOG, 0, len(BODY))) as pieces:
        await anext(pieces)
    await until(lambda: world.quiet(storage))
    assert await read(storage, LOG, 5, 9) == BODY[5:9]
    await storage.close()


async def test_throttling_halves_what_runs_at_once_and_success_grows_it_again(world):
    storage = await world.open(writes_max=8)
    gate = storage._client.writes
    world.proxy.plant(answer(503, "SlowDown", "PutObject", times=1))
    await storage.overwrite_control("_rlmm/a", b"1")
    assert gate.limit == 4
    assert storage.stats.throttled == 1
    for _ in range(40):
        await storage.overwrite_control("_rlmm/a", b"1")
    assert gate.limit == 8
    await storage.close()


async def test_when_everything_fails_the_budget_ends_the_retries(world):
    storage = await world.open(attempts_max=4)
    storage._client.rim.budget._left = 1.5
    world.proxy.plant(planted := answer(500, "InternalError", "PutObject"))
    for _ in range(5):
        with pytest.raises(StorageUnavailable):
            await storage.overwrite_control("_rlmm/a", b"1")
    assert planted.hits == 6
    assert storage.stats.retries_refused == 5
    await storage.close()


async def test_a_cancel_at_any_moment_leaves_no_upload_and_no_visible_log(world):
    storage = await world.open()
    for calls in range(1, 12, 2):
        seen = sum(world.proxy.calls.values())
        copy = asyncio.get_running_loop().create_task(
            storage.put_segment(segment(Buffer(BODY)), progress=Progress())
        )
        await until(
            lambda seen=seen, calls=calls, copy=copy: (
                copy.done() or sum(world.proxy.calls.values()) >= seen + calls
            )
        )
        copy.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await copy
            break
        await until(lambda: world.quiet(storage))
        await unsuspected(storage)
        assert world.uploads_left() == [], calls
        assert LOG not in world.keys_there(), calls
    await storage.close()


async def test_a_create_that_arrives_after_its_copy_was_cancelled_leaves_no_upload(world):
    storage = await world.open()
    world.proxy.plant(fault(Kind.LATENCY, "CreateMultipartUpload", seconds=1.0))
    copy = asyncio.get_running_loop().create_task(
        storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    )
    await until(lambda: world.proxy.calls["CreateMultipartUpload"])
    copy.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await copy
    assert storage.suspects == [LOG], "the server may hear of it yet"
    await until(lambda: world.uploads_left() == [LOG])
    await settled(world, storage)
    await storage.close()


async def test_an_upload_whose_abort_failed_is_aborted_as_soon_as_it_can_be(world):
    storage = await world.open(attempts_max=2)
    world.proxy.plant(answer(403, "AccessDenied", "UploadPart|AbortMultipartUpload"))
    with pytest.raises(StorageUnavailable):
        await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    assert world.uploads_left() == [LOG]
    assert storage.suspects == [LOG]
    world.proxy.lift()
    await storage.put_segment(segment(prefix=f"{SEGMENT}x"), progress=Progress())
    assert world.uploads_left() == []
    await storage.close()


async def test_a_start_sweeps_what_is_older_than_any_copy_and_ours_and_nothing_else(world):
    ours, theirs = f"tier/{LOG}", ["somebody/else.log", "tier/else.log", LOG, f"other/{LOG}"]
    for key in (ours, *theirs):
        world.admin.create_multipart_upload(Bucket=world.bucket, Key=key)
    young = await world.open(prefix="tier")
    assert sorted(world.uploads_left()) == sorted([ours, *theirs])
    # Another daemon may still be at it: its own copies live longer.
    for seconds, kept in ((86_400.0, [ours]), (-3_600.0, [])):
        await young.overwrite_control(presence_key(2), encode(presence_of(2, seconds)))
        old = await world.open(prefix="tier", copy_deadline=-3_600.0)
        assert sorted(world.uploads_left()) == sorted([*kept, *theirs])
        await old.close()
    await young.close()


@pytest.mark.parametrize("refused", ["ListMultipartUploads", "AbortMultipartUpload"])
async def test_a_sweep_that_is_refused_keeps_nothing_else_from_working(world, monkeypatch, refused):
    monkeypatch.setattr(leftovers, "SWEEP_AGAIN_SECONDS", 0.0)
    world.admin.create_multipart_upload(Bucket=world.bucket, Key=LOG)
    world.proxy.plant(planted := answer(403, "AccessDenied", refused))
    storage = await world.open(copy_deadline=-3_600.0)
    assert planted.hits
    other = f"{SEGMENT}x"
    await storage.put_segment(segment(Buffer(BODY), prefix=other), progress=Progress())
    assert await read(storage, f"{other}.log") == BODY
    assert world.uploads_left() == [LOG]
    world.proxy.lift()
    await storage.put_segment(segment(prefix=other), progress=Progress())
    assert world.uploads_left() == []
    await storage.close()


def presence_of(broker_id: int, copy_deadline_seconds: float) -> Presence:
    return Presence(
        cluster_id="c",
        broker_id=broker_id,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=0,
        copy_deadline_seconds=copy_deadline_seconds,
        lease_end_ms=0,
        metadata_manager="rlmm",
        partitions={},
    )


@through_each
async def test_credentials_are_read_anew_when_they_are_refused(world):
    now = {"keys": replace(keys_of("daemon"), secret_access_key=keys_of("admin").access_key_id)}
    storage = await world.new(static_keys=lambda: now["keys"])
    with pytest.raises(StorageUnavailable) as failure:
        await storage.open()
    assert failure.value.fields["reason"] == "bad_credentials"
    assert "adminkey" not in str(failure.value)
    now["keys"] = keys_of("daemon")
    await storage.open()
    assert not await storage.reload_credentials()
    await storage.close()


@through_each
async def test_keys_that_cannot_be_read_are_a_passing_trouble_of_the_storage(world):
    def keys() -> Any:
        if not mended:
            raise ConfigError("storage.access_key_id_file can't be read")
        return keys_of("daemon")

    mended = False
    storage = await world.new(static_keys=keys)
    with pytest.raises(StorageUnavailable) as failure:
        await storage.open()
    assert failure.value.fields["reason"] == "no_credentials"
    mended = True
    await storage.open()
    await storage.close()


async def test_a_reader_may_not_write_and_the_probe_says_so(world):
    storage = await world.open(static_keys=lambda: keys_of("reader"))
    with pytest.raises(StorageUnavailable) as failure:
        await storage.overwrite_control("_rlmm/a", b"1")
    assert failure.value.fields["reason"] == "denied"
    results = (await storage.probe()).results
    assert results["list"] is None
    assert results["put"] is not None
    assert results["put"].fields["reason"] == "denied"
    await storage.close()


@pytest.mark.parametrize(
    ("planted", "step", "reason"),
    [
        (fault(Kind.WRONG_CHECKSUM, "HeadObject", key=r"\.whole$"), "complete", "no_checksums"),
        (
            answer(404, "NoSuchUpload", "CompleteMultipartUpload"),
            "complete",
            "no_upload",
        ),
        # The first writes the canary, the second asks for its absence, the third for its version.
        (
            answer(200, "", "PutObject", skip=2, times=1, body=b"", headers={"ETag": '"1"'}),
            "conditional put",
            "no_conditional_writes",
        ),
    ],
    ids=["checksum", "complete", "if-match"],
)
async def test_a_server_that_cannot_do_all_that_a_copy_needs_is_told_by_the_probe(
    world, planted, step, reason
):
    storage = await world.open()
    world.proxy.plant(each := copy(planted))
    results = (await storage.probe()).results
    assert each.hits
    failed = {name: error.fields.get("reason") for name, error in results.items() if error}
    assert failed == {step: reason}
    assert world.keys_there() == set()
    await settled(world, storage)
    await storage.close()


KEYS = ("_rlmm/marker.json", "_rlmm/daemons/1.json", "a/topic/x.log")


@pytest.mark.parametrize("there", [False, True])
async def test_rights_that_single_keys_lack_are_told_and_nothing_is_written_there(world, there):
    storage = await world.open()
    for key in KEYS if there else ():
        await storage.overwrite_control(key, b"theirs")
    before = world.keys_there()
    world.proxy.plant(answer(403, "AccessDenied", "PutObject", key=r"_rlmm/daemons/"))
    results = (await storage.probe(KEYS)).results
    assert [f"write {key}" for key in KEYS] == [*results][-3:]
    failed = {name: error.fields["reason"] for name, error in results.items() if error}
    assert failed == {"write _rlmm/daemons/1.json": "denied"}
    assert world.keys_there() == before
    for key in KEYS if there else ():
        control = await storage.get_control(key)
        assert control is not None
        assert control.data == b"theirs"
    actions = {a for each in policy("b", failed)["Statement"] for a in each["Action"]}
    assert actions == {"s3:PutObject", "s3:GetObject"}
    await storage.close()


async def test_a_storage_that_writes_over_what_is_not_there_is_not_asked_for_keys_in_use(world):
    storage = await world.open()
    made = answer(
        200, "", "PutObject", key=r"\.absent$", times=1, body=b"", headers={"ETag": '"1"'}
    )
    world.proxy.plant(made)
    asked = answer(403, "AccessDenied", "PutObject", key="marker")
    world.proxy.plant(asked)
    results = (await storage.probe(KEYS)).results
    assert made.hits
    assert not asked.hits
    failed = {name: error.fields["reason"] for name, error in results.items() if error}
    assert failed == {f"write {key}": "not_tried" for key in KEYS}
    assert world.keys_there() == set()
    await storage.close()


async def test_rates_bound_a_copy_and_a_change_is_felt_by_one_in_flight(world):
    storage = await world.open()
    # At this rate the copy would outlive the test.
    storage._copy_rate.set_rate(64 * 1024)
    async with asyncio.TaskGroup() as group:
        progress = Progress()
        group.create_task(storage.put_segment(segment(Buffer(BODY)), progress=progress))
        await until(lambda: progress.bytes_done > 0)
        storage._copy_rate.set_rate(0)
    assert await read(storage, LOG) == BODY
    await storage.close()


@through_each
async def test_rates_bound_a_read_and_a_change_is_felt_by_one_in_flight(world):
    storage = await world.open()
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    # At this rate the read would outlive the test; copies have their own.
    storage.set_rates(Rates(fetch_bytes_per_second=4 * 1024))
    await storage.put_segment(segment(Buffer(BODY), prefix=f"{SEGMENT}x"), progress=Progress())
    async with contextlib.aclosing(storage.fetch(LOG, 0, len(BODY))) as pieces:
        got, loop = b"", asyncio.get_running_loop()
        # A piece of more than a second's worth makes the next one wait; without a limit none does.
        while (await asyncio.wait({more := loop.create_task(anext(pieces))}, timeout=1.0))[0]:
            got += more.result()
        assert len(got) < len(BODY) / 2
        storage.set_rates(Rates())
        got += await more
        got += b"".join([piece async for piece in pieces])
    assert got == BODY
    await storage.close()


async def test_copies_hold_none_of_their_parts_in_memory_whatever_happens(world, tmp_path):
    """Counted from before the first byte: a file, parts sent again, an end in the middle.

    As large as by default, two copies of three parts at once: none of the parts is held.
    """
    part, parts, size = 64 * MIB, 4, 192 * MIB
    path = tmp_path / "source"
    path.touch()
    os.truncate(path, size)
    source = FileSource(os.open(path, os.O_RDONLY), str(path))
    storage = await world.open(part_size_bytes=part, parts_in_flight_max=parts)
    world.proxy.plant(reset := fault(Kind.RESET, "UploadPart", skip=1, times=2))
    world.proxy.plant(cut := fault(Kind.CUT_REQUEST, "UploadPart", times=2, after=MIB))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with asyncio.TaskGroup() as copies:
            for prefix in (SEGMENT, f"{SEGMENT}-2"):
                rows = segment(source, prefix)
                copies.create_task(storage.put_segment(rows, progress=Progress()))
        assert (reset.hits, cut.hits) == (2, 2)
        world.proxy.plant(answer(403, "AccessDenied", "UploadPart", skip=1))
        with pytest.raises(StorageUnavailable):
            await storage.put_segment(segment(source), progress=Progress())
        await until(lambda: world.quiet(storage))
        peak = tracemalloc.get_traced_memory()[1]
        await until(lambda: _traced() - before <= 4 * MIB, seconds=60)
    finally:
        tracemalloc.stop()
        source.close()
    assert peak - before <= 32 * MIB
    await settled(world, storage)
    await storage.close()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_after_one_fault_after_the_other_no_memory_is_held(world):
    """Each but the slow ones, on one storage; what a first copy loads and keeps comes before."""
    planted = [*PASSING.values(), *(each for each, _, _ in FAILING.values())]
    planted += [fault(kind, "GetObject", times=1) for kind in (Kind.RESET, Kind.LOSE_ANSWER)]
    storage = await world.open(attempts_max=3)
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    await read(storage, LOG)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for each in planted:
            if each.kind in SLOW:
                continue
            world.proxy.plant(hit := copy(each))
            with contextlib.suppress(RlmmError):
                await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
                await read(storage, LOG)
            assert hit.hits
            world.proxy.lift()
        await until(lambda: world.quiet(storage))
        # Sockets on both sides of the proxy, which is in this process, give back what they hold of
        # a broken connection in their own time.
        await until(lambda: _traced() - before <= 4 * MIB, seconds=60)  # not even one part
    finally:
        tracemalloc.stop()
    await settled(world, storage)
    await storage.close()


async def test_objects_carry_tags_and_class_as_configured(world):
    storage = await world.open(tags={"team": "a b", "x": ""}, storage_class="STANDARD_IA")
    rows = [(ObjectKind.LOG, "t/a.log", Buffer(b"x")), (ObjectKind.LOG, "t/b.log", Buffer(BODY))]
    await storage.put_segment(rows, progress=Progress())
    for key in ("t/a.log", "t/b.log"):
        tags = world.admin.get_object_tagging(Bucket=world.bucket, Key=key)["TagSet"]
        assert {row["Key"]: row["Value"] for row in tags} == {"team": "a b", "x": ""}
        found = world.admin.head_object(Bucket=world.bucket, Key=key)
        assert found["StorageClass"] == "STANDARD_IA"
    await storage.close()


async def test_a_delete_says_which_key_failed(world):
    storage = await world.open()
    await storage.overwrite_control("a", b"1")
    world.proxy.plant(answer(403, "AccessDenied", "DeleteObjects"))
    outcome = await storage.delete(["a", "b.log"])
    assert {type(error) for error in outcome.values()} == {StorageUnavailable}
    world.proxy.lift()
    world.proxy.plant(answer(501, "NotImplemented", "DeleteObjects"))
    assert await storage.delete(["a", "b.log"]) == {"a": None, "b.log": None}
    assert world.keys_there() == set()
    await storage.close()


async def test_a_server_that_says_nothing_to_a_batch_deletes_key_by_key(world):
    storage = await world.open(attempts_max=2)
    stored = await storage.put_segment(segment(), progress=Progress())
    world.proxy.plant(answer(200, "", "DeleteObjects", body=b""))
    outcome = await storage.delete([row.key for row in stored])
    assert set(outcome.values()) == {None}
    assert world.keys_there() == set()
    await storage.close()


async def test_a_delete_of_which_one_key_fails_is_not_done_for_that_key_alone(world):
    storage = await world.open()
    partly = (
        b"<DeleteResult>"
        b"<Error><Key>b.index</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        b"<Error><Key>c.index</Key><Code>NoSuchKey</Code><Message>no</Message></Error>"
        b"<Error><Key>d.index</Key><Code>InternalError</Code><Message>no</Message></Error>"
        b"</DeleteResult>"
    )
    world.proxy.plant(planted := answer(200, "", "DeleteObjects", body=partly))
    outcome = await storage.delete(["a.index", "b.index", "c.index", "d.index"])
    reasons = {key: error and error.fields["reason"] for key, error in outcome.items()}
    assert reasons == {
        "a.index": None,
        "b.index": "denied",
        "c.index": None,
        "d.index": "server_error",
    }
    assert planted.hits == 4, "asked again for the one that may pass"
    await storage.close()


class TwoFaced(FileSource):
    """A file whose bytes differ each second time, though nothing says that it was written to."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, path)
        self.reads: Counter[int] = Counter()

    def pread(self, offset: int, length: int) -> bytes:
        self.reads[offset] += 1
        found = super().pread(offset, length)
        # What comes out of the page cache to be sent is not asked for here: it is as it is.
        return found[:-1] + bytes([found[-1] ^ 1]) if self.reads[offset] % 2 else found


@pytest.mark.parametrize("body", [BODY, BODY[:5000]], ids=["in parts", "in one"])
async def test_what_is_sent_is_what_was_hashed_or_nothing(world, tmp_path, body):
    """A part is read once for its checksum and once to be sent: the server compares the two."""
    storage = await world.open(attempts_max=2)
    path = tmp_path / "source"
    path.write_bytes(body)
    source = TwoFaced(os.open(path, os.O_RDONLY), str(path))
    with pytest.raises(RlmmError):
        await storage.put_segment(segment(source), progress=Progress())
    source.close()
    assert max(source.reads.values()) >= 2
    assert LOG not in world.keys_there()
    await settled(world, storage)
    await storage.close()


@through_each
async def test_reads_go_on_while_every_write_is_stuck(world):
    storage = await world.open(writes_max=1, call_timeout=600.0, read_timeout=600.0)
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    world.proxy.plant(planted := fault(Kind.BLACK_HOLE, "PutObject|CreateMultipartUpload"))
    other = segment(Buffer(BODY), prefix=f"{SEGMENT}x")
    copy = asyncio.get_running_loop().create_task(storage.put_segment(other, progress=Progress()))
    await until(lambda: planted.hits)
    async with asyncio.timeout(60):  # or it would wait for the write's own deadline
        assert await read(storage, LOG) == BODY
    copy.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await copy
    world.proxy.lift()
    await storage.close()
