"""The whole daemon on a real S3: what an operator and a broker see of it."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.dev.stack.fault_proxy import Fault, Kind
from deploy.dev.stack.s3 import IDENTITIES
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    Draining,
    OutcomeUnknown,
    ProtocolViolation,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.support import kafka_segments
from tests.support.fork_server import ForkServer
from tests.support.kafka_segments import KafkaSegment
from tests.support.s3_daemon import ProxyThread, Tier, configure
from tests.support.s3_world import needs_s3, s3_server
from tests.support.stocked_daemon import Stocked, eventually, free_address, make

pytestmark = needs_s3
__all__ = ["s3_server"]
MIB = 1024 * 1024


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer, proxy: ProxyThread, tier: Tier) -> Iterator[Stocked]:
    config = configure(tmp_path, proxy.endpoint, tier.bucket, "{hash:8}/tiered")
    settings = {"admin.listen": free_address(), "daemon.drain_deadline_ms": 10_000}
    stocked = make(tmp_path, forks, settings, config)
    with stocked.daemon:
        yield stocked


def large(it: Stocked, mark: int = 1) -> KafkaSegment:
    """A segment of several parts."""
    return kafka_segments.enlarge(
        it.placed[it.orders[0]][-1], SegmentId(bytes([mark] * 16)), 12 * MIB
    )


def copied(it: Stocked, segment: KafkaSegment) -> SegmentMetadata:
    with it.daemon.client() as client:
        return client.copy_segment(segment.metadata, segment.files, timeout_seconds=120)


def test_a_bucket_that_takes_no_writes_keeps_the_doubt_of_another_daemon_and_says_so(
    it, tier, proxy
):
    """A killed daemon of another host left its file, and this one's PUT of it is refused."""
    it.stock()
    assert it.daemon.stop() == 0
    key = "_rlmm/daemons/1.json"
    own = tier.admin.get_object(Bucket=tier.bucket, Key=key)["Body"].read()
    left = json.loads(own) | {"ended": False, "place": "elsewhere", "host": "host b, pid 7"}
    tier.admin.put_object(Bucket=tier.bucket, Key=key, Body=json.dumps(left).encode())
    proxy.plant(Fault(kind=Kind.ANSWER, operation="PutObject", status=403, code="AccessDenied"))
    it.start()
    words = "(host b, pid 7), which may still run, and is not written over"
    told = eventually(lambda: str(it.json("status")["storage"]["error"]), lambda now: words in now)
    assert "AccessDenied" in told
    assert it.rlmm("status").exit_code == 1
    assert words in it.rlmm("explain", "orders-0").output
    segment = it.copied(0)[0].metadata
    with it.daemon.client() as client:
        with pytest.raises(StorageUnavailable) as refused:
            client.delete_segment(segment.partition, segment.segment_id)
        assert refused.value.fields["reason"] == "other_daemon"
        assert words in refused.value.message
        proxy.lift()
        # Without a command or a restart; then the other one has its time to show itself.
        eventually(lambda: it.json("status")["storage"]["error"], lambda now: now is None)
        written = json.loads(tier.admin.get_object(Bucket=tier.bucket, Key=key)["Body"].read())
        assert written["other"] == {"who": "host b, pid 7", "met": False}
        with pytest.raises(StorageUnavailable):
            client.delete_segment(segment.partition, segment.segment_id)
    it.serves(0)


def test_another_daemons_absurd_presence_file_ends_no_daemon_and_answers_wait_for_its_end(it, tier):
    it.stock()
    assert it.daemon.stop() == 0
    own = tier.admin.get_object(Bucket=tier.bucket, Key="_rlmm/daemons/1.json")["Body"].read()
    other = json.loads(own) | {"broker_id": 9, "copy_deadline_seconds": 1e308}
    tier.admin.put_object(
        Bucket=tier.bucket, Key="_rlmm/daemons/9.json", Body=json.dumps(other).encode()
    )
    it.start()
    eventually(lambda: it.row(0).get("failure"), lambda failure: failure is not None)
    assert it.row(0)["failure"]["reason"] == "presence_unread"
    assert it.lines("a presence file is not read")
    tier.admin.delete_object(Bucket=tier.bucket, Key="_rlmm/daemons/9.json")
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    it.copy_new(0)
    it.serves(1)


def test_what_is_copied_is_served_and_counted(it, tier):
    it.stock()
    for _ in range(2):
        it.serves(0)
        it.serves(1)
    it.announce()
    wanted = {
        'rlmm_storage_requests_total{operation="PutObject",outcome="ok"}',
        'rlmm_storage_requests_total{operation="GetObject",outcome="ok"}',
        "rlmm_storage_retry_budget",
        'rlmm_storage_requests_in_flight_max{direction="write"}',
        'rlmm_storage_gets_total{kind="log"}',
        'rlmm_read_cache_lookups_total{cache="chunk",outcome="hit"}',
        'rlmm_read_cache_lookups_total{cache="chunk",outcome="miss"}',
        'rlmm_read_first_byte_duration_seconds_count{source="cache"}',
        'rlmm_read_first_byte_duration_seconds_count{source="storage"}',
        "rlmm_copy_duration_seconds_count",
        'rlmm_copy_phase_duration_seconds_count{phase="upload"}',
        "rlmm_fetch_duration_seconds_count",
    }
    eventually(it.metrics, lambda found: all(found.get(name, 0) > 0 for name in wanted))
    assert all("/tiered/" in key for key in tier.keys_there() if not key.startswith("_rlmm/"))


def test_trouble_of_the_storage_moves_its_metrics(it, proxy):
    it.announce()
    proxy.plant(
        Fault(kind=Kind.ANSWER, operation="UploadPart", times=1, status=503, code="SlowDown")
    )
    proxy.plant(Fault(kind=Kind.RESET, operation="UploadPart", times=1))
    copied(it, large(it))
    proxy.plant(Fault(kind=Kind.ANSWER, operation="UploadPart", status=403, code="AccessDenied"))
    with pytest.raises(StorageUnavailable) as refusal:
        copied(it, large(it, 2))
    assert refusal.value.fields["reason"] == "denied"
    wanted = {
        "rlmm_storage_throttled_total",
        'rlmm_storage_retries_total{outcome="made"}',
        'rlmm_storage_requests_total{operation="UploadPart",outcome="connection"}',
        'rlmm_storage_requests_total{operation="UploadPart",outcome="denied"}',
        'rlmm_copies_total{outcome="storage_unavailable"}',
    }
    eventually(it.metrics, lambda found: all(found.get(name, 0) > 0 for name in wanted))


def test_a_log_that_is_damaged_on_its_way_is_never_read_whole_nor_kept(it, proxy):
    it.announce()
    segment = large(it)
    done = copied(it, segment)
    proxy.plant(Fault(kind=Kind.DAMAGE_ANSWER, operation="GetObject", key=r"\.log$", times=1))
    expected = Path(segment.files.log).read_bytes()
    failed = 0
    with it.daemon.client() as client:
        while failed < 3:  # what a second read finds may not be evicted yet
            try:
                with client.fetch_log_segment(done) as log:
                    assert log.readall() == expected
                break
            except (ChecksumMismatch, ProtocolViolation):
                failed += 1
    assert 1 <= failed < 3
    assert sum(
        count
        for name, count in it.metrics().items()
        if name.startswith("rlmm_read_mismatches_total")
    )


def test_an_index_that_is_damaged_on_its_way_is_asked_for_again(it, proxy):
    it.announce()
    segment = large(it)
    done = copied(it, segment)
    damage = Fault(kind=Kind.DAMAGE_ANSWER, operation="GetObject", key=r"\.index$", times=1)
    proxy.plant(damage)
    with it.daemon.client() as client, client.fetch_index(done, "OFFSET") as index:
        assert index.readall() == Path(segment.files.offset_index).read_bytes()
    assert damage.hits == 1
    assert it.metrics()['rlmm_read_mismatches_total{kind="index"}'] == 1


@contextmanager
def an_upload_that_is_stuck(it, proxy, tier, big) -> Iterator[Future[SegmentMetadata]]:
    """A copy whose second part is never answered."""
    proxy.plant(Fault(kind=Kind.BLACK_HOLE, operation="UploadPart", skip=1))
    with ThreadPoolExecutor(1) as threads:
        copying = threads.submit(copied, it, big)
        eventually(tier.uploads)
        yield copying


def test_the_delete_of_a_copy_that_was_killed_aborts_its_upload(it, proxy, tier):
    it.announce()
    big = large(it)
    with an_upload_that_is_stuck(it, proxy, tier, big) as copying:
        it.daemon.kill()
        assert isinstance(copying.exception(60), OutcomeUnknown)
    proxy.lift()
    assert tier.uploads()
    it.start()
    with it.daemon.client() as client:
        client.delete_segment(big.metadata.partition, big.metadata.segment_id)
    assert tier.uploads() == []
    assert tier.keys_there(big.metadata.segment_id) == []


def test_a_stop_in_the_middle_of_a_copy_leaves_nothing_behind(it, proxy, tier):
    it.announce()
    big = large(it)
    with an_upload_that_is_stuck(it, proxy, tier, big) as copying:
        assert it.daemon.stop() == 0
        failure = copying.exception(60)
    assert isinstance(failure, Draining)
    assert failure.fields["rolled_back"] is True
    assert tier.uploads() == []
    assert tier.keys_there(big.metadata.segment_id) == []


def reload(it: Stocked, times: int, outcome: str = "ok") -> None:
    assert it.daemon.process is not None
    it.daemon.process.send_signal(signal.SIGHUP)
    name = f'rlmm_reloads_total{{outcome="{outcome}"}}'
    eventually(it.metrics, lambda found: found.get(name) == times)


def test_sighup_changes_keys_and_rates_without_a_restart(it, tmp_path):
    it.announce()
    file = tmp_path / "rlmm.toml"
    plain = file.read_text()
    # At this rate the copy would outlive its caller.
    file.write_text(plain.replace("[read]", "copy_bytes_per_second_max = 65536\n[read]"))
    reload(it, 1)
    with ThreadPoolExecutor(1) as threads:
        copying = threads.submit(copied, it, large(it))
        eventually(it.metrics, lambda found: found.get("rlmm_copies_in_flight", 0) == 1)
        file.write_text(plain)
        reload(it, 2)
        copying.result(60)
    for number, identity in ((3, "reader"), (4, "daemon")):
        key, secret, _ = IDENTITIES[identity]
        (tmp_path / "s3.key").write_text(key)
        (tmp_path / "s3.secret").write_text(secret)
        reload(it, number)
        if identity == "daemon":
            copied(it, large(it, number))
            continue
        with pytest.raises(StorageUnavailable) as refusal:
            copied(it, large(it, number))
        assert refusal.value.fields["reason"] == "denied"
    (tmp_path / "s3.key").unlink()
    reload(it, 1, "failed")
    copied(it, large(it, 5))
