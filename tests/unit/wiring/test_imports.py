"""What a start waits for: libraries that are not used are not loaded."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
#: A daemon up to where it begins to serve, then what it has loaded.
STARTED = """
import sys
from rlmm_daemon.cli import run
from rlmm_daemon.wiring.daemon import Daemon
config = run.load(sys.argv[1], ())
Daemon(config, lambda: config)
print(*{name.partition(".")[0] for name in sys.modules})
"""
S3 = """
[storage]
kind = "s3"
bucket = "tiered"
region = "eu-central-1"
"""
LOCAL = """
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "local"
directory = "{directory}"
"""


def loaded(tmp_path, text):
    """Return the names of all packages that a daemon of this configuration loads."""
    file = tmp_path / "rlmm.toml"
    head = (
        '[daemon]\nbroker_id = 1\ncluster_id = "ours"\n'
        f'state_dir = "{tmp_path}/state"\nlog_dirs = ["{tmp_path}/logs"]\n'
    )
    file.write_text(head + text.replace("{directory}", f"{tmp_path}/remote"))
    done = subprocess.run(
        [sys.executable, "-c", STARTED, str(file)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_start_on_local_files_loads_no_client_of_what_is_not_used(tmp_path):
    found = loaded(tmp_path, LOCAL)
    assert "structlog" in found
    assert not found & {"aiobotocore", "botocore", "aiokafka", "aiohttp", "rich", "pyspark"}


def test_the_sdk_is_loaded_where_segments_are_on_s3(tmp_path):
    found = loaded(tmp_path, LOCAL.partition("[storage]")[0] + S3)
    assert "aiobotocore" in found
    assert "aiokafka" not in found
