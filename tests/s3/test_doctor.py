"""`rlmm storage doctor` against a real server: what is allowed, and the policy for what is not."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.dev.stack.s3 import IDENTITIES, S3Server
from rlmm_daemon.cli import main
from tests.support.s3_world import S3World, needs_s3, s3_server

pytestmark = needs_s3
__all__ = ["s3_server"]


@pytest.fixture
def world(s3_server: S3Server) -> S3World:
    return S3World(s3_server)


def config_of(world: S3World, directory: Path, identity: str, bucket: str | None = None) -> str:
    key, secret, _ = IDENTITIES[identity]
    (directory / "key").write_text(key)
    (directory / "secret").write_text(secret)
    file = directory / "rlmm.toml"
    file.write_text(
        f"""
[daemon]
broker_id = 1
cluster_id = "c"
log_dirs = ["{directory}/logs"]
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "{bucket or world.bucket}"
endpoint = "{world.server.endpoint}"
addressing = "path"
access_key_id_file = "{directory}/key"
secret_access_key_file = "{directory}/secret"
"""
    )
    return str(file)


def test_where_all_is_allowed_the_doctor_says_so_and_leaves_nothing(world, tmp_path):
    run = CliRunner().invoke(
        main, ["storage", "doctor", "--config", config_of(world, tmp_path, "daemon"), "--json"]
    )
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert found["policy"] is None
    assert set(found["steps"].values()) == {None}
    assert world.keys_there() == set()
    assert world.uploads_left() == []


def test_what_is_denied_comes_with_the_policy_that_allows_it(world, tmp_path):
    run = CliRunner().invoke(
        main, ["storage", "doctor", "--config", config_of(world, tmp_path, "reader")]
    )
    assert run.exit_code == 1
    policy = json.loads(run.stdout[run.stdout.index("{") :])
    actions = {action for each in policy["Statement"] for action in each["Action"]}
    assert {"s3:PutObject", "s3:DeleteObject"} <= actions
    assert "s3:ListBucket" not in actions
    assert IDENTITIES["reader"][1] not in run.output


def test_a_bucket_that_is_not_there_is_named(world, tmp_path):
    run = CliRunner().invoke(
        main,
        ["storage", "doctor", "--config", config_of(world, tmp_path, "daemon", "no-such-bucket")],
    )
    assert run.exit_code == 1
    assert "'no-such-bucket'" in run.stdout
