"""The job's client of the bucket is made from every configuration that the daemon takes."""

from rlmm_daemon.config import parse
from rlmm_daemon.reconcile.read import s3_client

CONFIG = """
[daemon]
broker_id = 1
state_dir = "/nonexistent/state"
log_dirs = ["/nonexistent/logs"]
[socket]
path = "/nonexistent/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["127.0.0.1:9092"]
[event_log.kafka.admin]
topic_settings = { "segment.bytes" = "104857600" }
[storage]
kind = "s3"
bucket = "segments"
region = "us-east-1"
"""


def test_a_table_in_another_section_does_not_matter() -> None:
    config = parse(CONFIG)
    assert s3_client.opened(config).config["bucket"] == "segments"
