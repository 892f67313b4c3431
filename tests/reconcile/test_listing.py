"""Slices of a real S3 server's keys: each key once, old versions apart, a refusal is an error."""

import asyncio
import itertools
import ssl
from pathlib import Path

import msgspec
import pytest

from deploy.dev.stack import s3
from deploy.dev.stack.fault_proxy import FaultProxy
from deploy.dev.stack.kafka import keys as certificates
from rlmm_daemon.config import Config, S3Storage, load
from rlmm_daemon.reconcile.act import object_tags
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import listing, prefix_cuts, s3_calls, s3_client, sources
from rlmm_daemon.reconcile.read.listing import Slice
from rlmm_daemon.reconcile.read.log_reading import LogSlice
from tests.reconcile.world import CLUSTER, DAEMON, PARTITIONS, S3
from tests.unit.reconcile.bucket import serving

pytestmark = pytest.mark.timeout(300)
PARTITION = "orders-0-AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def server():
    with s3.running() as running:
        yield running


def configured(home: Path, server: s3.S3Server, bucket: str, identity: str = "daemon") -> Config:
    key, secret, _ = s3.IDENTITIES[identity]
    (home / "access_key_id").write_text(key)
    (home / "secret_access_key").write_text(secret)
    storage = S3.format(bucket=bucket, endpoint=server.endpoint, home=home)
    file = home / "rlmm.toml"
    file.write_text(DAEMON.format(cluster=CLUSTER, home=home, count=PARTITIONS, storage=storage))
    return load(file)


def listed(config: Config, *, old: bool = False) -> list[str]:
    parts = [part for part in listing.slices(config, [""]) if part.old == old]
    return [each.key for part in parts for each in listing.objects(config, part)]


def test_a_large_prefix_is_cut_and_every_key_is_listed_once(
    tmp_path: Path, server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PAGE_KEYS", 10)
    monkeypatch.setattr(prefix_cuts.cuts, "__kwdefaults__", {"slice_keys": 60})
    admin = server.admin()
    admin.create_bucket(Bucket="large")
    keys = [f"{PARTITION}/{at * 1000:020}-{at:022}.log" for at in range(300)]
    # Names that servers order differently, and some that are nobody's, on both sides of a cut.
    keys += [f"{PARTITION}/{name}" for name in ("a", "a-b", "a.b", "0/x", "~", f"{5000:020}/z")]
    keys += ["stray", "orders-1-AAAAAAAAAAAAAAAAAAAAAA/one", "orders-0/x"]
    for key in keys:
        admin.put_object(Bucket="large", Key=key, Body=b"x")
    config = configured(tmp_path, server, "large")
    parts = [part for part in listing.slices(config, [""]) if part.prefix == f"{PARTITION}/"]
    assert len(parts) >= 4, "it was not cut"
    assert max(len([*listing.objects(config, part)]) for part in parts) < 200
    assert sorted(listed(config)) == sorted(keys)


def test_old_versions_are_listed_apart_where_the_bucket_keeps_them(
    tmp_path: Path, server: s3.S3Server
) -> None:
    admin = server.admin()
    admin.create_bucket(Bucket="kept")
    config = configured(tmp_path, server, "kept", "admin")
    assert not any(part.old for part in listing.slices(config, [""]))
    admin.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
    key = f"{PARTITION}/{0:020}-{'A' * 22}.log"
    for body in (b"1", b"22", b"333"):
        admin.put_object(Bucket="kept", Key=key, Body=body)
    admin.put_object(Bucket="kept", Key="stray", Body=b"once")
    assert sorted(listed(config)) == [key, "stray"]
    assert listed(config, old=True) == [key, key]


def test_a_listing_that_is_refused_is_never_an_empty_one(
    tmp_path: Path, server: s3.S3Server
) -> None:
    config = configured(tmp_path, server, "tier")
    (tmp_path / "secret_access_key").write_text("wrong")
    with pytest.raises(Incomplete, match="cut short"):
        [*listing.objects(config, Slice("orders/"))]
    with pytest.raises(Incomplete):
        listing.slices(config, [""])


async def test_a_listing_trusts_the_authority_that_the_configuration_names(
    tmp_path: Path, server: s3.S3Server
) -> None:
    server.admin().put_object(Bucket="tier", Key="trusted/one", Body=b"x")
    certificates.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    async with FaultProxy(server.port, tls=context) as proxy:
        config = configured(tmp_path, server, "tier")
        assert isinstance(config.storage, S3Storage)

        def keys(**more: str) -> list[str]:
            storage = msgspec.structs.replace(config.storage, endpoint=proxy.endpoint, **more)
            known = msgspec.structs.replace(config, storage=storage)
            return [each.key for each in listing.objects(known, Slice("trusted/"))]

        assert await asyncio.to_thread(keys, ca_file=str(tmp_path / "ca.pem")) == ["trusted/one"]
        with pytest.raises(Incomplete, match="ca_file"):
            await asyncio.to_thread(keys, ca_file=str(tmp_path / "none.pem"))
        with pytest.raises(Incomplete, match="cut short"):
            await asyncio.to_thread(keys)


def test_whom_the_configured_authority_did_not_sign_is_not_trusted_even_if_the_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("theirs", "other"):
        certificates.make(tmp_path / name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "theirs" / "server.pem")
    monkeypatch.setattr(s3_client, "_ATTEMPTS", 0)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "theirs" / "ca.pem"))
    with serving(tmp_path, ["trusted/one"], tls=context) as bucket:

        def keys(**more: str) -> list[str]:
            storage = msgspec.structs.replace(bucket.config.storage, **more)
            known = msgspec.structs.replace(bucket.config, storage=storage)
            return [each.key for each in listing.objects(known, Slice("trusted/"))]

        assert keys() == ["trusted/one"], "the system trusts it"
        with pytest.raises(Incomplete, match="cut short"):
            keys(ca_file=str(tmp_path / "other" / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other" / "ca.pem"))
        assert keys(ca_file=str(tmp_path / "theirs" / "ca.pem")) == ["trusted/one"]


def test_tags_are_set_and_taken_away_and_the_others_stay(
    tmp_path: Path, server: s3.S3Server
) -> None:
    admin = server.admin()
    admin.put_object(Bucket="tier", Key="tagged", Body=b"x", Tagging="team=blue")
    calls = s3_calls.S3Calls(configured(tmp_path, server, "tier"))

    def tags() -> dict[str, str]:
        found = admin.get_object_tagging(Bucket="tier", Key="tagged")["TagSet"]
        return {each["Key"]: each["Value"] for each in found}

    before = admin.head_object(Bucket="tier", Key="tagged")
    calls.tag("tagged", "rlmm-quarantined", "run")
    assert tags() == {"team": "blue", "rlmm-quarantined": "run"}
    after = admin.head_object(Bucket="tier", Key="tagged")
    assert (after["ETag"], after["LastModified"]) == (before["ETag"], before["LastModified"])
    calls.tag("tagged", "rlmm-quarantined", None)
    assert tags() == {"team": "blue"}
    reader = s3_calls.S3Calls(configured(tmp_path, server, "tier", "reader"))
    with pytest.raises(s3_calls.Unsupported):
        reader.tag("tagged", "rlmm-quarantined", "run")


def test_what_is_quarantined_is_tagged_as_far_as_that_can_be_done(
    tmp_path: Path, server: s3.S3Server
) -> None:
    admin = server.admin()
    keys = [f"quarantined/{n}" for n in range(5)]
    for key in keys:
        admin.put_object(Bucket="tier", Key=key, Body=b"x")
    config = configured(tmp_path, server, "tier")

    def tags(key: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = admin.get_object_tagging(Bucket="tier", Key=key)["TagSet"]
        return found

    assert object_tags.tag_all(config, [*keys, "quarantined/gone"], "run-1") == len(keys)
    assert all(tags(key) == [{"Key": object_tags.TAG, "Value": "run-1"}] for key in keys)
    assert object_tags.tag_all(config, keys, None) == len(keys)
    assert not any(map(tags, keys))
    assert object_tags.tag_all(configured(tmp_path, server, "tier", "reader"), keys, "run-2") == 0


@pytest.mark.parametrize("count", [0, 5, 10, 11, 997])
@pytest.mark.parametrize("gap", [1, 7, 10**15])
def test_cuts_rise_and_part_the_keys(count: int, gap: int) -> None:
    prefix = "p/"
    keys = [f"{prefix}{at * gap:020}-x" for at in range(count)]
    asked = 0

    def page_after(key: str) -> list[str]:
        nonlocal asked
        asked += 1
        return [*itertools.islice((each for each in keys if each > key), 10)]

    found = prefix_cuts.cuts(prefix, page_after, page_keys=10, slice_keys=100)
    assert found == sorted(set(found))
    assert abs(len(found) - count // 90) <= 1, "a hop is nine tenths of what it could be"
    assert asked <= len(found) + 2
    bounds = [None, *found, None]
    parts = [Slice(prefix, after=a, until=b) for a, b in itertools.pairwise(bounds)]
    assert [sum(part.holds(key) for part in parts) for key in keys] == [1] * count


def test_sparks_configuration_and_plans_name_the_files_of_secrets_and_hold_none(
    spark, tmp_path: Path, server: s3.S3Server
) -> None:
    config = configured(tmp_path, server, "tier")
    key, secret, _ = s3.IDENTITIES["daemon"]
    # Both sources, as a night reads them; the objects' one is run, so that its tasks have the keys.
    objects = sources.objects(spark, config, [Slice("trusted/")], 0)
    events = sources.events(
        spark, config, [LogSlice(number=0, begin=0, end=1, partition_count=PARTITIONS)]
    )
    server.admin().put_object(Bucket="tier", Key="trusted/two", Body=b"x")
    assert objects.where("key = 'trusted/two'").count() == 1
    told = [str(pair) for pair in spark.sparkContext.getConf().getAll()]
    told += [str(each) for each in spark.conf.getAll.items()]
    for frame in (objects, events):
        told += [frame._jdf.queryExecution().toString()]
        told += [frame._jdf.queryExecution().logical().toJSON()]
    told += [msgspec.json.encode(config).decode()]
    assert str(tmp_path / "secret_access_key") in told[-1], "it is what the options hold"
    for text in told:
        assert key not in text
        assert secret not in text


def test_a_slice_keeps_its_shape_on_its_way_to_a_task() -> None:
    part = Slice("p/", after="p/1", until="p/2", old=True)
    assert msgspec.json.decode(msgspec.json.encode([part]), type=list[Slice]) == [part]
