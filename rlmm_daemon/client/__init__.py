"""The daemon's socket for Python programs: `Client` blocks, `AsyncClient` awaits.

    with Client() as rlmm:
        segment = rlmm.remote_log_segment_metadata(partition, epoch=5, offset=1234)
        with rlmm.fetch_log_segment(segment) as log:
            first = log.read(4096)

The socket is the one given, else `RLMM_SOCKET`, else `/run/rlmm/rlmm.sock`. Both classes have one
method for each method of the socket, raise the errors of `domain.errors`, never hang (each call has
a deadline) and connect again by themselves. This package needs `codec` and `domain` only.
"""

from rlmm_daemon.client._async.client import AsyncClient
from rlmm_daemon.client._async.connection import AsyncBulkReader
from rlmm_daemon.client._common import ClientOptions, socket_path
from rlmm_daemon.client._sync.client import Client
from rlmm_daemon.client._sync.connection import BulkReader
from rlmm_daemon.domain import errors

__all__ = [
    "AsyncBulkReader",
    "AsyncClient",
    "BulkReader",
    "Client",
    "ClientOptions",
    "errors",
    "socket_path",
]
