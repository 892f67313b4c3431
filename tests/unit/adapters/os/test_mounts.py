import os
from pathlib import Path

import pytest

from rlmm_daemon.adapters.os.mounts import is_of_this_host

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:60 / /mnt/nfs rw,relatime shared:12 master:3 - nfs4 10.0.0.1:/a rw
41 27 0:61 / /mnt/ssh rw - fuse.sshfs somebody@host:/ rw
42 27 0:62 / /srv/tmp rw shared:7 - tmpfs tmpfs rw
43 27 0:6 / /srv/other rw - 9p share rw
"""


@pytest.mark.parametrize(
    ("major", "minor", "expected"),
    [(254, 0, True), (8, 17, True), (0, 60, False), (0, 61, False), (0, 62, True), (0, 6, False),
     (0, 63, False)],
)  # fmt: skip
def test_only_disks_and_memory_are_of_this_host(tmp_path, major, minor, expected):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert is_of_this_host(os.makedev(major, minor), str(mounts)) is expected


def test_what_is_not_known_is_not_ours(tmp_path):
    assert not is_of_this_host(os.makedev(0, 60), str(tmp_path / "absent"))
    (tmp_path / "garbled").write_bytes(b"\xff\n0:60\n1 2 0:60\n")
    assert not is_of_this_host(os.makedev(0, 60), str(tmp_path / "garbled"))


def test_this_machines_own():
    assert is_of_this_host(Path("/dev/shm").stat().st_dev)
    assert not is_of_this_host(Path("/proc").stat().st_dev)
