"""The S3 storage's keys: explained in the demo file, judged together, handed to the adapter."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.config import S3Storage, effective_toml, parse
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.wiring.adapters import s3_options_of

PAIR = ("access_key_id", "secret_access_key")
DEMO = Path(__file__).parents[3] / "config" / "rlmm.toml"
SMALLEST = """
[daemon]
broker_id = 1
cluster_id = "c"
log_dirs = ["/kafka"]
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "tiered"
"""
#: Keys without a default, or whose default is to be absent: the demo file shows an example.
EXAMPLES = {
    "kind", "bucket", "region", "endpoint", "ca_file", "proxy", "access_key_id_file",
    "access_key_id_env", "secret_access_key_file", "secret_access_key_env", "session_token_file",
    "session_token_env", "sse_kms_key", "expected_bucket_owner", "storage_class",
}  # fmt: skip


def s3_of_the_demo_file() -> dict[str, object]:
    lines = DEMO.read_text().splitlines()
    text = "\n".join(line.removeprefix("### ") for line in lines if line.startswith("### "))
    return tomllib.loads(text)


def s3(*overrides: str) -> S3Storage:
    storage = parse(SMALLEST, overrides).storage
    assert isinstance(storage, S3Storage)
    return storage


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse(SMALLEST, overrides)
    found: list[str] = refusal.value.fields["problems"]
    return found


def test_the_demo_file_explains_every_key_with_its_default():
    told = s3_of_the_demo_file()
    known = msgspec.to_builtins(s3())
    assert told.keys() == known.keys()
    for key in told.keys() - EXAMPLES:
        default = known[key]
        assert told[key] == (list(default) if isinstance(default, tuple) else default), key
    for key in EXAMPLES - {"kind", "bucket"}:
        assert known[key] is None, key


def test_what_is_in_force_reads_back():
    config = parse(SMALLEST, ['storage.tags=["a=b", "c="]', "storage.sse=aws:kms"])
    assert parse(effective_toml(config)) == config


def test_the_adapter_is_told_in_seconds_and_pairs():
    config = parse(
        SMALLEST,
        ['storage.tags=["a=b", "c="]', "storage.idle_timeout_ms=1500", "storage.prefix=eu/x"],
    )
    assert isinstance(config.storage, S3Storage)
    options = s3_options_of(config, config.storage)
    assert options.tags == {"a": "b", "c": ""}
    assert (options.idle_timeout, options.prefix) == (1.5, "eu/x")
    assert options.static_keys is None


def test_keys_are_read_from_their_files_when_asked_and_never_shown(tmp_path: Path):
    for name in ("key", "secret"):
        (tmp_path / name).write_text(f"the-{name}\n")
    config = parse(
        SMALLEST,
        [
            f"storage.access_key_id_file={tmp_path}/key",
            f"storage.secret_access_key_file={tmp_path}/secret",
        ],
    )
    assert isinstance(config.storage, S3Storage)
    read = s3_options_of(config, config.storage).static_keys
    assert read is not None
    assert read().secret_access_key.reveal() == "the-secret"
    (tmp_path / "secret").write_text("another")
    assert read().secret_access_key.reveal() == "another"
    assert "another" not in repr(read())


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["storage.access_key_id_file=/k"], "belong together"),
        (["storage.session_token_env=T"], "belongs to an access key"),
        (
            [f"storage.{k}_{w}=X" for k in PAIR for w in ("file", "env")],
            "both set",
        ),
        (["storage.sse_kms_key=k"], "aws:kms"),
        (["storage.bucket=b--usw2-az1--x-s3"], "directory bucket"),
        (["storage.transport=curl"], "storage.transport"),
        (["storage.bucket=a"], "storage.bucket"),
        (["storage.endpoint=http://u:p@h"], "storage.endpoint"),
        (["storage.part_size_bytes=1048576"], "storage.part_size_bytes"),
        (['storage.tags=["novalue"]'], "storage.tags"),
        (["daemon.log_dirs=[]"], "daemon.log_dirs is empty"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(overrides: list[str], reason: str):
    assert any(reason in each for each in problems(*overrides))
