"""The daemon's configuration that these tests give the job; only its storage differs."""

from typing import Final

DAEMON: Final = """
[daemon]
broker_id = 1
cluster_id = "c2lkZWNhci1kZXYta2Fma2"
state_dir = "{home}/state"
log_dirs = ["{home}/logs"]
[socket]
path = "{home}/rlmm.sock"
[event_log]
kind = "embedded"
single_broker = true
"""
LOCAL: Final = f"""{DAEMON}
[storage]
kind = "local"
directory = "{{home}}/remote"
"""
