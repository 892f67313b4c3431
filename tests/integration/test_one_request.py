"""What one request, or one client, may do to a real daemon: nothing but to itself."""

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.domain.errors import RlmmError
from tests.support.stocked_daemon import Stocked, eventually, free_address, make, pid_of

#: Clients that connect while there are descriptors for a few.
CLIENTS = 40


def limit_descriptors(it: Stocked, more: int) -> None:
    """Let the daemon open so many more than it has."""
    pid = pid_of(it)
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(most, used + more), most))


@pytest.mark.parametrize("method", ["copy_segment", "copy_log_segment_data"])
def test_a_zero_byte_in_a_file_s_path_ends_one_request(tmp_path, forks, method):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        segment, pid = it.next(0), pid_of(it)
        files = msgspec.structs.replace(segment.files, log=f"{it.daemon.log_dir}/orders-0/\0")
        with it.daemon.client() as client:
            if method == "copy_log_segment_data":
                client.add_remote_log_segment_metadata(segment.metadata)
            with pytest.raises(RlmmError):
                getattr(client, method)(segment.metadata, files)
        it.serves(0)
        assert pid_of(it) == pid
        assert it.copy_new(0)


def test_a_daemon_that_runs_out_of_descriptors_just_after_its_start_goes_on(tmp_path):
    it = make(tmp_path, settings={"admin.listen": free_address()})
    with it.daemon, ExitStack() as clients:
        limit_descriptors(it, 1)
        for _ in range(CLIENTS):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(it.daemon.socket_path)
        # Ten a second: by then everything that a start puts off has been tried.
        eventually(lambda: len(it.lines("server.accept_failed")) > 25)
        limit_descriptors(it, 1_000)
        clients.close()
        it.stock()
        it.serves(0)
        assert eventually(lambda: it.admin("/healthz"))[0] == 200
        assert it.lines("crashed") == []
