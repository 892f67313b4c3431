"""Keys that change while calls are in flight, and sources that can't be read."""

import asyncio
from typing import Any

import pytest

from rlmm_daemon.adapters.storage.s3 import S3Storage, StaticKeys
from rlmm_daemon.domain.errors import ConfigError, StorageUnavailable
from rlmm_daemon.domain.secret import Secret
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, ok, refusal, refuses, storage_on

CALLS = 4


class Source:
    """Files with a key pair."""

    def __init__(self) -> None:
        self.key, self.reads, self.readable = "old", 0, True

    def __call__(self) -> StaticKeys:
        self.reads += 1
        if not self.readable:
            raise ConfigError("storage.access_key_id_file can't be read")
        return StaticKeys(access_key_id=Secret(self.key), secret_access_key=Secret("secret"))


class Signed(ScriptedS3):
    """Refuses all keys but `good`, once as many calls are there as are waited for."""

    def __init__(self) -> None:
        self.good, self.together = "old", asyncio.Barrier(1)
        self.credentials: Any = None
        super().__init__(put_object=self._put)

    async def _put(self, **_: Any) -> Any:
        signed = await self.credentials.get_frozen_credentials()
        if signed.access_key != self.good:
            if not self.together.broken:
                await self.together.wait()
            raise refusal(403, "InvalidAccessKeyId")
        return ok(ETag="e")


def made() -> tuple[Source, Signed, S3Storage]:
    source, s3 = Source(), Signed()
    storage = storage_on(s3, static_keys=source)
    s3.credentials = storage._client.credentials
    return source, s3, storage


async def test_all_calls_in_flight_survive_a_change_of_keys():
    source, s3, storage = made()
    await storage.overwrite_control("_rlmm/a", b"1")
    source.key = s3.good = "new"
    s3.together = asyncio.Barrier(CALLS)
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS):
            group.create_task(storage.overwrite_control("_rlmm/a", b"1"))
    assert storage.stats.calls["PutObject", "ok"] == 1 + CALLS
    assert storage.stats.calls["PutObject", "bad_credentials"] == CALLS
    await storage.close()


async def test_a_call_that_was_signed_before_a_reload_is_made_again():
    source, s3, storage = made()
    await storage.overwrite_control("_rlmm/a", b"1")
    s3.good, s3.together = "new", asyncio.Barrier(2)
    async with asyncio.TaskGroup() as group:
        group.create_task(storage.overwrite_control("_rlmm/a", b"1"))
        while not s3.together.n_waiting:  # noqa: ASYNC110 - a barrier tells nobody
            await asyncio.sleep(0)
        source.key = "new"
        assert await storage.reload_credentials()
        await s3.together.wait()
    assert not await storage.reload_credentials()
    await storage.close()


async def test_keys_that_are_wrong_and_stay_so_are_tried_once():
    _, s3, storage = made()
    s3.good = "another"
    with pytest.raises(StorageUnavailable) as failure:
        await storage.overwrite_control("_rlmm/a", b"1")
    assert failure.value.fields["reason"] == "bad_credentials"
    assert s3.calls == ["put_object"]
    await storage.close()


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (400, "ExpiredToken", "expired_credentials"),
        (403, "InvalidAccessKeyId", "bad_credentials"),
        (403, "RequestTimeTooSkewed", "clock_skew"),
        (403, "AccessDenied", "denied"),
    ],
)
async def test_a_refused_head_is_told_by_its_reason_and_new_keys_help_it(status, code, reason):
    """Its answer has no body: without asking further a rotated key would be a wrong policy."""

    async def refused(**_: Any) -> bool:
        signed = await s3.credentials.get_frozen_credentials()
        return signed is None or signed.access_key != s3.good

    async def head(**parameters: Any) -> Any:
        if await refused(**parameters):
            raise refusal(status, str(status))
        return ok(ContentLength=7)

    async def get(**parameters: Any) -> Any:
        assert await refused(**parameters), "asked for the reason alone"
        raise refusal(status, code)

    source, s3, storage = made()
    s3.answers |= {"head_object": head, "get_object": get}
    assert await storage.size("a.log") == 7
    s3.good = "new"
    with pytest.raises(StorageUnavailable) as failure:
        await storage.size("a.log")
    assert failure.value.fields["reason"] == reason
    source.key = "new"
    if reason in {"expired_credentials", "bad_credentials"}:
        assert await storage.size("a.log") == 7
    await storage.close()


async def test_a_head_that_alone_is_refused_is_refused():
    _, s3, storage = made()
    body = type("Body", (), {"close": lambda _: None})()
    s3.answers |= {
        "head_object": refuses(403, "403"),
        "get_object": lambda **_: ok(ContentLength=1, ETag="e", Body=body),
    }
    with pytest.raises(StorageUnavailable) as failure:
        await storage.size("a.log")
    assert failure.value.fields["reason"] == "denied"
    await storage.close()


async def test_a_source_that_cannot_be_read_fails_a_reload_and_leaves_the_keys():
    source, s3, storage = made()
    await storage.overwrite_control("_rlmm/a", b"1")
    source.readable = False
    with pytest.raises(StorageUnavailable) as failure:
        await storage.reload_credentials()
    assert failure.value.fields["reason"] == "no_credentials"
    await storage.overwrite_control("_rlmm/a", b"1")
    s3.good = "new"
    with pytest.raises(StorageUnavailable) as failure:
        await storage.overwrite_control("_rlmm/a", b"1")
    assert failure.value.fields["reason"] == "bad_credentials", "the call's own error"
    await storage.close()


async def test_a_chain_that_finds_nothing_fails_a_reload_and_leaves_the_keys(monkeypatch, tmp_path):
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    keys = "[default]\naws_access_key_id={}\naws_secret_access_key=s\n"
    file.write_text(keys.format("old"))
    storage = storage_on(ScriptedS3())
    credentials: Any = storage._client.credentials
    assert (await credentials.get_frozen_credentials()).access_key == "old"
    file.unlink()
    with pytest.raises(StorageUnavailable):
        await storage.reload_credentials()
    assert (await credentials.get_frozen_credentials()).access_key == "old"
    file.write_text(keys.format("new"))
    assert await storage.reload_credentials()
    assert (await credentials.get_frozen_credentials()).access_key == "new"
    await storage.close()
