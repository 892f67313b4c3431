"""Installing, upgrading, going back and removing, in a copy of this system."""

import os
from pathlib import Path

import pytest

from rlmm_daemon import __version__
from tests.packages.conftest import Built
from tests.packages.root import Root

INSTALL = {
    "deb": ["dpkg", "--force-unsafe-io", "-i"],
    "rpm": ["rpm", "-U", "--nodeps", "--oldpackage"],
}
REMOVE = {"deb": ["dpkg", "--purge"], "rpm": ["rpm", "-e", "--nodeps"]}
CONFIGURATION = 'mine = "kept"\n'


def install(root: Root, kind: str, built: Built) -> None:
    files = [root.put(built.file(name, kind)) for name in ("rlmm-daemon", "rlmm-kafka-plugin")]
    root.run(*INSTALL[kind], *files)


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_a_host_through_all_of_it(root: Root, built: Built, newer: Built, kind: str):
    install(root, kind, built)
    assert root.run("rlmm", "--version").strip() == "rlmm, version 0.1.0"
    assert root.shell("id -nG rlmm").split() == ["rlmm", "kafka"]
    assert root.shell("stat -c '%a %U %G' /etc/rlmm").strip() == "750 root rlmm"
    for needed in (
        "/usr/lib/systemd/system/rlmm-daemon.service",
        "/usr/lib/systemd/system/kafka.service.d/rlmm.conf",
        "/opt/rlmm/rlmm-kafka-plugin.jar",
    ):
        root.run("test", "-f", needed)
    assert "complete" in root.run("cat", "/usr/share/bash-completion/completions/rlmm")

    # State and configuration are the host's own from here on.
    root.shell(
        f"printf '%s' '{CONFIGURATION}' > /etc/rlmm/rlmm.toml; "
        "install -d -o rlmm -g rlmm /var/lib/rlmm; echo events > /var/lib/rlmm/log"
    )
    uid = root.shell("id -u rlmm")
    for other in (newer, built):  # forth and back
        install(root, kind, other)
        root.run("rlmm", "--version")
        assert root.run("cat", "/etc/rlmm/rlmm.toml") == CONFIGURATION
    root.run(*REMOVE[kind], "rlmm-kafka-plugin", "rlmm-daemon")
    root.shell("! test -e /opt/rlmm; ! test -e /usr/bin/rlmm")
    root.shell("! test -e /usr/lib/systemd/system/kafka.service.d/rlmm.conf")
    assert root.run("cat", "/etc/rlmm/rlmm.toml") == CONFIGURATION
    assert root.run("cat", "/var/lib/rlmm/log") == "events\n"
    assert root.shell("id -u rlmm") == uid


def test_the_plugin_does_not_come_without_its_daemon(root: Root, built: Built):
    """Its drop-in gives the broker a group that only the daemon's package makes."""
    said = root.shell(f"dpkg -i {root.put(built.file('rlmm-kafka-plugin', 'deb'))} 2>&1", code=1)
    assert "depends on rlmm-daemon" in said


@pytest.mark.skipif(
    "RLMM_PACKAGES" not in os.environ, reason="takes half a gigabyte: make soak-packages"
)
def test_the_nightly_job_finds_its_spark(root: Root):
    packages = Built(Path(os.environ["RLMM_PACKAGES"]), __version__)
    files = [root.put(packages.file(name, "deb")) for name in ("rlmm-daemon", "rlmm-reconcile")]
    root.run(*INSTALL["deb"], *files)
    root.run("/opt/rlmm/bin/python", "-c", "import pandas, pyarrow, pyspark.sql")
    assert "Usage: rlmm reconcile run" in root.run("rlmm", "reconcile", "run", "--help")
    assert not root.shell("ls /opt/rlmm/lib/python3.11/site-packages | grep duckdb || true")
