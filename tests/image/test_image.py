"""The image of `make image`, run by an OCI runtime as the manifests have a pod run it.

Asked for by RLMM_TEST_IMAGE, the layout's directory (`make test-image`). Needs root, umoci, runc.
With RLMM_TEST_IMAGE_RECONCILE that of the nightly job, too (`make test-image-reconcile`).
"""

import json
import os
import shutil
import stat
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon import __version__
from tests.packages.root import until
from tests.support.daemon_process import REPOSITORY
from tests.support.kubernetes import configuration, named

LAYOUT = os.environ.get("RLMM_TEST_IMAGE", "")
NIGHTLY_LAYOUT = os.environ.get("RLMM_TEST_IMAGE_RECONCILE", "")
pytestmark = [
    pytest.mark.skipif(not LAYOUT, reason="needs an image: RLMM_TEST_IMAGE=DIRECTORY"),
    pytest.mark.timeout(300),
]
SECONDS = 600
#: SOURCE_DATE_EPOCH of the build.
NEWEST = 1767225600
POD = named("StatefulSet", "kafka")["spec"]["template"]["spec"]
[DAEMON] = [each for each in POD["containers"] if each["name"] == "rlmm"]
[BROKER] = [each for each in POD["containers"] if each["name"] == "kafka"]
GROUP = POD["securityContext"]["fsGroup"]
JOB = named("CronJob", "rlmm-reconcile")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
[NIGHTLY] = JOB["containers"]
#: Of one broker, with all that it has in one volume.
SMALL = """
[daemon]
broker_id = 0
cluster_id = "MkU3OEVBNTcwNTJENDM2Qk"
log_dirs = ["/tmp"]
state_dir = "/var/lib/rlmm/state"
[event_log]
kind = "embedded"
single_broker = true
partition_count = 3
[storage]
kind = "local"
directory = "/var/lib/rlmm/remote"
"""


def run(*command: str | Path, code: int = 0) -> str:
    """Run it; returns what it said, or what went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout or done.stderr


def blob(digest: str) -> Any:
    return json.loads((Path(LAYOUT) / "blobs" / digest.replace(":", "/")).read_text())


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("image") / "bundle"
    run("umoci", "unpack", "--image", f"{LAYOUT}:{__version__}", bundle)
    return bundle


class Container:
    """A container of the daemon's image beside volumes as a pod has them."""

    def __init__(self, unpacked: Path, home: Path) -> None:
        self.home = home
        self.name = f"rlmm-{uuid.uuid4().hex[:8]}"
        self._runc = ["runc", "--root", str(home / "runc")]
        self._image = json.loads((unpacked / "config.json").read_text())
        self._image["root"] = {"path": str(unpacked / "rootfs"), "readonly": True}

    def volume(self, name: str) -> Path:
        """Make one as the kubelet does: of the pod's group, which what is made there inherits."""
        path = self.home / name
        path.mkdir()
        os.chown(path, 0, GROUP)
        path.chmod(0o2770)
        return path

    def prepare(self, of: dict[str, Any], arguments: list[str], volumes: dict[str, Path]) -> None:
        """Have it be a container of the manifests, with a command and volumes of ours."""
        own = of["securityContext"]
        process = self._image["process"] | {
            "terminal": False,
            "args": arguments,
            "env": [*self._image["process"]["env"], *_environment(of)],
            "user": {
                "uid": own["runAsUser"], "gid": own["runAsGroup"], "additionalGids": [GROUP]
            },
            "capabilities": {},
            "noNewPrivileges": not own["allowPrivilegeEscalation"],
        }  # fmt: skip
        mounts = [
            each
            for each in self._image["mounts"]
            if each["destination"].startswith(("/proc", "/dev"))
        ]
        hosts = self.home / "hosts"  # as the kubelet writes it: the JVM asks for its own name
        hosts.write_text(f"127.0.0.1 localhost {self._image['hostname']}\n")
        mounts.append({
            "destination": "/etc/hosts", "source": str(hosts), "type": "none",
            "options": ["rbind", "ro"],
        })  # fmt: skip
        for each in of["volumeMounts"]:
            if each["name"] in volumes:
                options = ["rbind", "ro" if each.get("readOnly") else "rw"]
                source = str(volumes[each["name"]])
                mounts.append({
                    "destination": each["mountPath"], "source": source, "type": "none",
                    "options": options,
                })  # fmt: skip
        said = self._image | {"process": process, "mounts": mounts}
        (self.home / "config.json").write_text(json.dumps(said))

    def run(
        self, *arguments: str, volumes: dict[str, Path] | None = None, of: dict[str, Any] = DAEMON
    ) -> str:
        """Run a command to its end."""
        self.prepare(of, list(arguments), volumes or {})
        return run(*self._runc, "run", "--bundle", self.home, self.name)

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("w") as output:
            return subprocess.Popen(
                [*self._runc, "run", "--bundle", self.home, self.name],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def inside(self, *command: str, user: int, code: int = 0) -> str:
        """Run a command in the container that runs, as this user in the pod's group."""
        options = ["--user", f"{user}:{user}", "--additional-gids", str(GROUP)]
        return run(*self._runc, "exec", *options, self.name, *command, code=code)

    def try_(self, *command: str) -> bool:
        done = subprocess.run(
            [*self._runc, "exec", self.name, *command],
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def delete(self) -> None:
        subprocess.run(
            [*self._runc, "delete", "--force", self.name], capture_output=True, check=False
        )


@pytest.fixture
def container(unpacked: Path, tmp_path: Path) -> Iterator[Container]:
    it = Container(unpacked, tmp_path)
    yield it
    it.delete()


def _environment(of: dict[str, Any]) -> list[str]:
    return [f"{each['name']}={each['value']}" for each in of.get("env", ()) if "value" in each]


def storage(state: Path) -> Path:
    """Make the directory that SMALL names, which a daemon does not."""
    made = state / "remote"
    made.mkdir()
    os.chown(made, DAEMON["securityContext"]["runAsUser"], GROUP)
    return made


def configured(container: Container) -> dict[str, Path]:
    """Volumes of a pod, with the ConfigMap's files and keys of a bucket."""
    volumes = {
        name: container.volume(name) for name in ("rlmm", "secrets", "socket", "state", "data")
    }
    configuration(volumes["rlmm"])
    (volumes["rlmm"] / "secrets").mkdir()
    for name in ("access-key-id", "secret-access-key"):
        (volumes["secrets"] / name).write_text("example")
    (volumes["data"] / "log").mkdir()
    for directory in volumes.values():
        for each in directory.rglob("*"):
            os.chown(each, 0, GROUP)
    return volumes


def test_it_says_how_it_is_to_be_run():
    index = json.loads((Path(LAYOUT) / "index.json").read_text())
    [manifest] = index["manifests"]
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == __version__
    [layer] = blob(manifest["digest"])["layers"]
    assert layer["size"] < 110_000_000
    image = blob(blob(manifest["digest"])["config"]["digest"])
    own = DAEMON["securityContext"]
    assert image["config"]["User"] == f"{own['runAsUser']}:{own['runAsGroup']}"
    assert image["config"]["Entrypoint"] == ["/usr/bin/rlmm"]
    assert image["config"]["Cmd"] == DAEMON["args"][:3]


def test_nothing_in_it_tells_when_it_was_built_or_makes_somebody_another_user(unpacked: Path):
    for each in (unpacked / "rootfs").rglob("*"):
        said = each.lstat()
        if not each.is_symlink():
            assert not said.st_mode & (stat.S_ISUID | stat.S_ISGID) or each.is_dir(), each
        assert said.st_mtime <= NEWEST, each


def test_nobody_can_log_in_and_no_configuration_is_there(unpacked: Path):
    root = unpacked / "rootfs"
    for line in (root / "etc" / "shadow").read_text().splitlines():
        assert line.split(":")[1] in {"*", "!", "!*"}, line
    assert list((root / "etc" / "rlmm").iterdir()) == []


def test_it_says_its_version(container: Container):
    assert container.run("/usr/bin/rlmm", "--version") == f"rlmm, version {__version__}\n"


def test_it_checks_the_configuration_of_the_manifests(container: Container):
    said = container.run(
        "/usr/bin/rlmm", "check-config", "--set", "daemon.broker_id=2", "/etc/rlmm/rlmm.toml",
        volumes=configured(container),
    )  # fmt: skip
    assert tomllib.loads(said)["daemon"]["broker_id"] == 2


def test_the_plugins_jar_can_be_taken_out_of_it(container: Container):
    [copying] = POD["initContainers"]
    plugin = container.volume("plugin")
    container.run(*copying["command"], of=copying, volumes={"plugin": plugin})
    [jar] = plugin.iterdir()
    assert jar.read_bytes()[:2] == b"PK"


def test_a_daemon_runs_in_it_serves_its_broker_and_nobody_else_and_drains(
    container: Container, tmp_path: Path
):
    """No broker and no bucket is there: as on the first start of all pods."""
    arguments = [each.replace("$(POD_INDEX)", "2") for each in DAEMON["args"]]
    container.prepare(DAEMON, ["/usr/bin/rlmm", *arguments], configured(container))
    log = tmp_path / "log"
    daemon = container.start(log)
    try:
        probe = "import urllib.request as r; r.urlopen('http://127.0.0.1:9405/healthz', timeout=5)"
        until(
            lambda: (
                daemon.poll() is not None or container.try_("/opt/rlmm/bin/python", "-c", probe)
            ),
            "the daemon is healthy",
        )
        assert daemon.poll() is None, log.read_text()
        broker = BROKER["securityContext"]["runAsUser"]
        status = json.loads(container.inside("rlmm", "status", "--json", user=broker, code=1))
        assert status["broker_id"] == 2
        assert status["log"]["open"] is False
        refused = json.loads(container.inside("rlmm", "status", "--json", user=4242, code=1))
        assert "broker_id" not in refused
        assert "no right" in str(refused)
        run("runc", "--root", tmp_path / "runc", "kill", container.name, "TERM")
        assert daemon.wait(timeout=60) == 0, log.read_text()
    finally:
        container.delete()
        daemon.wait(timeout=60)


def test_it_copies_a_segment_that_only_the_pods_group_may_read_and_writes_nothing_beside_it(
    container: Container, tmp_path: Path
):
    broker = BROKER["securityContext"]["runAsUser"]
    volumes = configured(container)
    remote = storage(volumes["state"])
    log_dir = "/var/lib/kafka/data/log"
    (volumes["rlmm"] / "rlmm.toml").write_text(
        SMALL.replace("/tmp", log_dir) + f"[socket.rights.write]\nuids = [{broker}]\n"
    )
    placed = volumes["data"] / "log" / "orders-0"
    shutil.copytree(REPOSITORY / "tests" / "data" / "segments" / "orders-0", placed)
    for each in (placed.parent, placed, *placed.iterdir()):
        os.chown(each, broker, GROUP)
        each.chmod(0o2750 if each.is_dir() else 0o640)
    container.prepare(DAEMON, ["/usr/bin/rlmm", *DAEMON["args"][:3]], volumes)
    log = tmp_path / "log"
    daemon = container.start(log)
    try:
        until(
            lambda: daemon.poll() is not None or container.try_("rlmm", "status"),
            "the daemon has its log",
        )
        assert daemon.poll() is None, log.read_text()
        container.inside(
            "rlmm", "copy", "apLbDWwZRSqEgj2avegTaA", "orders-0", "--dir", f"{log_dir}/orders-0",
            "--start-offset", "0", "--end-offset", "707", "--epochs", "0:0", user=broker,
        )  # fmt: skip
        assert "Read-only" in container.inside(
            "sh", "-c", f"echo > {log_dir}/orders-0/0.log",
            user=DAEMON["securityContext"]["runAsUser"], code=2,
        )  # fmt: skip
    finally:
        container.delete()
        daemon.wait(timeout=60)
    assert [each for each in remote.rglob("*.log") if each.stat().st_size]


@pytest.mark.skipif(not NIGHTLY_LAYOUT, reason="takes 757 MB: make test-image-reconcile")
@pytest.mark.timeout(900)
def test_a_night_runs_in_its_image_and_agrees_with_what_a_daemon_left(
    unpacked: Path, tmp_path: Path
):
    """The daemon of one image makes log and storage, Spark of the other holds them together."""
    (tmp_path / "day").mkdir()
    daemons = Container(unpacked, tmp_path / "day")
    volumes = {"rlmm": daemons.volume("rlmm"), "state": daemons.volume("state")}
    configuration(volumes["rlmm"])
    (volumes["rlmm"] / "rlmm.toml").write_text(SMALL)
    storage(volumes["state"])
    volumes["socket"] = daemons.volume("socket")
    daemons.prepare(DAEMON, ["/usr/bin/rlmm", *DAEMON["args"][:3]], volumes)
    log = tmp_path / "log"
    daemon = daemons.start(log)
    try:
        until(
            lambda: daemon.poll() is not None or daemons.try_("rlmm", "status"),
            "the daemon has its log",
        )
        assert daemon.poll() is None, log.read_text()
        run("runc", "--root", daemons.home / "runc", "kill", daemons.name, "TERM")
        assert daemon.wait(timeout=60) == 0, log.read_text()
    finally:
        daemons.delete()
        daemon.wait(timeout=60)

    bundle = tmp_path / "nightly"
    run("umoci", "unpack", "--image", f"{NIGHTLY_LAYOUT}:{__version__}", bundle)
    (tmp_path / "night").mkdir()
    night = Container(bundle, tmp_path / "night")
    try:
        said = night.run(
            *NIGHTLY["command"],
            of=NIGHTLY,
            volumes={
                "rlmm": volumes["rlmm"],
                "reports": volumes["state"],
                "tmp": night.volume("tmp"),
            },
        )
    finally:
        night.delete()
        shutil.rmtree(bundle)
    assert "agree" in said
    assert (volumes["state"] / "reconcile" / "latest" / "report.html").exists()
