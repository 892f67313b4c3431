"""The daemon's configuration that these tests give the job; only its storage differs."""

from typing import Final

from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE

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


def layouts(*prefixes: str) -> tuple[LayoutRow, ...]:
    """Return a marker's table with these prefixes, from number 1 on."""
    return tuple(
        LayoutRow(number=number, kind=LOCAL_TIERED_STORAGE, prefix=prefix)
        for number, prefix in enumerate(prefixes, start=1)
    )
