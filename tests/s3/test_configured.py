"""What is configured is what goes over the wire, and what the server makes of it."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.fault_proxy import FaultProxy
from deploy.dev.stack.kafka import keys
from deploy.dev.stack.s3 import DOMAIN
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import Progress
from tests.contract.storage import SEGMENT, Buffer, body, read, segment
from tests.contract.storage import keys as listed
from tests.support.s3_world import MIB, S3World, needs_s3, s3_server, through_each, transport

pytestmark = needs_s3
__all__ = ["s3_server", "transport"]
LOG = f"{SEGMENT}.log"
#: Two parts.
BODY = bytes(range(256)) * (6 * MIB // 256)
WRITES = {"PutObject", "CreateMultipartUpload"}


@pytest.fixture
async def world(s3_server, transport):
    world = S3World(s3_server, transport=transport)
    await world.start_proxy()
    yield world
    await world.aclose()


async def everything(storage: Any) -> None:
    """Copy, read, list, write a control object, delete."""
    await storage.put_segment(segment(Buffer(BODY)), progress=Progress())
    assert await read(storage, LOG, 3, 9) == BODY[3:9]
    assert LOG in await listed(storage)
    await storage.overwrite_control("_rlmm/x", b"1")
    assert set((await storage.delete([LOG])).values()) == {None}


@pytest.mark.parametrize("part", ["PutObject", "CreateMultipartUpload"])
async def test_every_new_object_asks_for_the_configured_encryption(world, part):
    storage = await world.open(sse="aws:kms", sse_kms_key_id="key-1")
    with pytest.raises(StorageUnavailable) as refusal:
        await storage.put_segment(
            segment(Buffer(BODY if part == "CreateMultipartUpload" else b"x")), progress=Progress()
        )
    # This server has no KMS: it refuses rather than to store without the key that was asked for.
    assert refusal.value.fields["reason"] in {"kms", "refused", "server_error"}
    asked = [headers for name, headers in world.proxy.seen if name == part]
    assert asked
    for headers in asked:
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert LOG not in world.keys_there()
    assert world.uploads_left() == []
    await storage.close()


async def test_what_s3_encrypts_by_itself_is_copied_verified_and_read(world):
    storage = await world.open(sse="AES256")
    for log in (BODY, b"small"):
        await storage.put_segment(segment(Buffer(log)), progress=Progress())
        found = world.admin.head_object(Bucket=world.bucket, Key=LOG)
        assert found["ServerSideEncryption"] == "AES256"
        assert await read(storage, LOG) == log
    await storage.close()


@through_each
async def test_every_call_names_the_expected_owner(world):
    storage = await world.open(expected_bucket_owner="111122223333")
    await everything(storage)
    assert {name for name, _ in world.proxy.seen} > WRITES
    for name, headers in world.proxy.seen:
        assert headers.get("x-amz-expected-bucket-owner") == "111122223333", name
    await storage.close()


@through_each
async def test_a_bucket_in_the_host_name_through_a_proxy(world):
    """Virtual addressing: the name resolves nowhere, so only the proxy can have been asked."""
    storage = await world.open(
        endpoint=f"http://{DOMAIN}", addressing="virtual", proxy=world.proxy.endpoint
    )
    await everything(storage)
    assert {headers["Host"] for _, headers in world.proxy.seen} == {f"{world.bucket}.{DOMAIN}"}
    await storage.close()


async def test_a_bucket_in_the_path_by_default(world):
    storage = await world.open()
    await everything(storage)
    host = world.proxy.endpoint.removeprefix("http://")
    assert {headers["Host"] for _, headers in world.proxy.seen} == {host}
    await storage.close()


@through_each
async def test_a_server_with_a_certificate_of_ones_own_needs_its_authority(
    world, tmp_path: Path, monkeypatch
):
    keys.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    async with FaultProxy(world.server.port, tls=context) as proxy:
        known = await world.open(endpoint=proxy.endpoint, ca_file=str(tmp_path / "ca.pem"))
        await everything(known)
        await known.close()
        # Whom the configured file does not name is not trusted, even if the system trusts it.
        keys.make(tmp_path / "other")
        for system, authority in (("other", None), (".", str(tmp_path / "other" / "ca.pem"))):
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / system / "ca.pem"))
            unknown = await world.new(endpoint=proxy.endpoint, ca_file=authority)
            for work in (unknown.open(), read(unknown, LOG, 0, 1)):
                with pytest.raises(StorageUnavailable) as refusal:
                    await work
                assert refusal.value.fields["reason"] == "tls"
                assert refusal.value.fields["retry"] is False
            await unknown.close()


async def test_without_keys_of_our_own_the_sdks_chain_is_asked(world, monkeypatch, tmp_path):
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id=daemonkey\naws_secret_access_key=daemonsecret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = await world.open(static_keys=None)
    await storage.put_segment(segment(), progress=Progress())
    assert await read(storage, LOG, 0, 9) == body_of_log()[:9]
    file.write_text("[default]\naws_access_key_id=readerkey\naws_secret_access_key=readersecret\n")
    assert await storage.reload_credentials()
    with pytest.raises(StorageUnavailable) as refusal:
        await storage.overwrite_control("_rlmm/x", b"1")
    assert refusal.value.fields["reason"] == "denied"
    await storage.close()


def body_of_log() -> bytes:
    return body(next(kind for kind, key, _ in segment() if key == LOG))


async def test_without_any_keys_the_error_says_so(world, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = await world.new(static_keys=None)
    with pytest.raises(StorageUnavailable) as refusal:
        await storage.open()
    assert refusal.value.fields["reason"] == "no_credentials"
    await storage.close()
