"""What is sent to Spark's tasks names the files of secrets and holds none of them."""

import pickle
from pathlib import Path

import msgspec

from rlmm_daemon.config import parse
from rlmm_daemon.reconcile.judge.second_look import Confirm
from rlmm_daemon.reconcile.read.liveness import Unknown

SECRETS = ("kafka-hunter2", "s3-hunter2", "s3-id", "key-hunter2")
CONFIG = """
[daemon]
broker_id = 1
state_dir = "{home}/state"
log_dirs = ["{home}/logs"]
[socket]
path = "{home}/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["127.0.0.1:9093"]
[event_log.kafka.security]
protocol = "SASL_SSL"
key_password_file = "{home}/key"
certificate_file = "{home}/cert"
key_file = "{home}/keyfile"
mechanism = "SCRAM-SHA-512"
username = "rlmm"
password_file = "{home}/password"
[storage]
kind = "s3"
bucket = "segments"
region = "us-east-1"
access_key_id_file = "{home}/id"
secret_access_key_file = "{home}/secret"
"""


def test_only_the_names_of_files_travel(tmp_path: Path) -> None:
    for name, secret in zip(("password", "secret", "id", "key"), SECRETS, strict=True):
        (tmp_path / name).write_text(secret)
    config = parse(CONFIG.format(home=tmp_path))
    # The options of both sources, and what is sent for `mapInArrow`.
    sent = (
        msgspec.json.encode(config),
        pickle.dumps(Confirm(config)),
        pickle.dumps(Unknown(config)),
    )
    for data in sent:
        assert f"{tmp_path}/password".encode() in data
        assert f"{tmp_path}/secret".encode() in data
        for secret in SECRETS:
            assert secret.encode() not in data
