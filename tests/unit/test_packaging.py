"""What is shipped: the wheel, the unit, the lock files, the Makefile's promises."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rlmm_daemon import __version__
from rlmm_daemon.config import Daemon
from rlmm_daemon.domain.ids import BrokerId
from tests.support.make_targets import make_targets

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "rlmm-daemon.service"
NIGHTLY = UNIT.with_name("rlmm-reconcile.service")
TIMER = UNIT.with_name("rlmm-reconcile.timer")
systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return the wheel built from a copy, without the network."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    for name in ("rlmm_daemon", "tests/unit/daemon/process"):
        shutil.copytree(ROOT / name, source / name)
    run = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    [path] = (source / "out").glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_its_licence_and_its_command(wheel: zipfile.ZipFile):
    names = wheel.namelist()
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "rlmm_daemon").rglob("*.py")
        if "/." not in str(path.relative_to(ROOT))
    }
    assert len(modules) > 10
    assert {name for name in names if name.endswith(".py")} <= modules
    assert {"rlmm_daemon/cli/group.py", "rlmm_daemon/daemon/process/runtime.py"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
    assert "rlmm = rlmm_daemon.cli:main" in wheel.read(entry_points).decode()


def test_the_base_wheel_brings_no_spark(wheel: zipfile.ZipFile):
    [metadata] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    required = re.findall(r"^Requires-Dist: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    spark = [line for line in required if re.match(r"(pyspark|pyarrow)\b", line)]
    assert len(spark) == 2
    assert all("extra == 'spark'" in line for line in spark)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_each_locked_requirement_has_hashes_and_no_registry_is_named(name: str):
    text = (ROOT / name).read_text()
    requirements = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(requirements) > 20
    for requirement in requirements:
        assert re.match(r"[a-z0-9._-]+==\S+", requirement)
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in text
    assert "pyspark" not in text


def test_every_direct_dependency_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"]
    base = (ROOT / "requirements.lock").read_text()
    dev = (ROOT / "requirements-dev.lock").read_text()
    for requirement in wanted:
        name = re.match(r"[a-z0-9-]+", requirement)
        assert name is not None
        assert re.search(rf"^{name[0]}==", base, re.MULTILINE), requirement
    for requirement in [*wanted, *project["dependency-groups"]["dev"]]:
        name = re.match(r"[a-z0-9-]+", requirement)
        assert name is not None
        assert re.search(rf"^{name[0]}==", dev, re.MULTILINE), requirement


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("Before", "kafka.service"),
        ("Restart", "always"),
        ("RestartSec", "500ms"),
        ("StartLimitIntervalSec", "0"),
        ("RestartPreventExitStatus", "78"),
        ("RuntimeDirectory", "rlmm"),
        ("StateDirectory", "rlmm"),
    ],
)
def test_the_unit_keeps_what_operators_rely_on(key: str, value: str):
    assert settings()[key] == [value]


def test_the_unit_neither_goes_down_with_the_broker_nor_hides_who_calls():
    assert not {"PartOf", "BindsTo", "Requires", "PrivateUsers"} & settings().keys()


def test_the_brokers_drop_in_wants_the_daemon_and_no_more():
    drop_in = configparser.ConfigParser()
    drop_in.read(ROOT / "deploy" / "systemd" / "kafka.service.d" / "rlmm.conf")
    assert drop_in["Unit"]["Wants"] == "rlmm-daemon.service"
    assert "Requires" not in drop_in["Unit"]


def runnable_unit(directory: Path, unit: Path = UNIT) -> Path:
    """Return a copy whose program exists here: that is all `verify` asks of it."""
    program = re.compile(r"^ExecStart=\S+", re.MULTILINE)
    text, count = program.subn("ExecStart=/bin/true", unit.read_text())
    assert count == 1
    copy = directory / unit.name
    copy.write_text(text)
    return copy


@systemd
@pytest.mark.parametrize("unit", [UNIT, NIGHTLY], ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path: Path, unit: Path):
    copy = runnable_unit(tmp_path, unit)
    command = ["systemd-analyze", "verify", str(copy)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    copy.write_text(copy.read_text() + "Nonsense=1\n")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Nonsense" in run.stderr


@systemd
@pytest.mark.parametrize("unit", [UNIT, NIGHTLY], ids=lambda unit: unit.stem)
def test_systemd_calls_the_unit_well_hardened(tmp_path: Path, unit: Path):
    command = ["systemd-analyze", "security", "--offline=true", str(runnable_unit(tmp_path, unit))]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"Overall exposure level for \S+: [01]\.\d OK", run.stdout), run.stdout[-200:]


@systemd
def test_the_timer_is_one_that_systemd_takes_and_fires_once_a_night(tmp_path: Path):
    runnable_unit(tmp_path, NIGHTLY)  # what it starts has to be there
    copy = tmp_path / TIMER.name
    copy.write_text(TIMER.read_text())
    run = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    timer = configparser.ConfigParser()
    timer.optionxform = str  # type: ignore[assignment]  # systemd's keys keep their case
    timer.read(TIMER)
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Timer"]["RandomizedDelaySec"] == "45min"
    command = ["systemd-analyze", "calendar", "--iterations=3", timer["Timer"]["OnCalendar"]]
    told = subprocess.run(
        command, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True, check=True
    ).stdout
    times = re.findall(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)", told)
    assert {time for _, time in times} == {"02:30:00"}
    assert len({day for day, _ in times}) == 3


def test_a_night_with_findings_is_no_failure_of_its_unit_and_a_refused_one_is():
    unit = NIGHTLY.read_text()
    assert re.search(r"^SuccessExitStatus=1$", unit, re.MULTILINE)
    assert re.search(r"^Type=oneshot$", unit, re.MULTILINE)
    assert "--execute" not in re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0]
    limits = ("TimeoutStartSec=", "MemoryMax=", "CPUWeight=", "TasksMax=")
    assert all(re.search(f"^{limit}", unit, re.MULTILINE) for limit in limits)


def test_the_stop_timeout_leaves_room_for_the_drain():
    drain_ms = Daemon(broker_id=BrokerId(1)).drain_deadline_ms
    [timeout] = settings()["TimeoutStopSec"]
    assert int(timeout.removesuffix("s")) * 1000 > drain_ms + 10_000


def test_preflight_names_each_missing_tool_with_its_install_command(tmp_path: Path):
    for tool in ("bash", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "apt-get").symlink_to("/bin/true")
    run = subprocess.run(
        ["bash", str(ROOT / "deploy" / "dev" / "preflight.sh")],
        env={"PATH": str(tmp_path)},
        executable=str(tmp_path / "bash"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "missing: Python 3.11 or newer\n  install it with: sudo apt-get install" in run.stderr
    assert "missing: make\n  install it with: sudo apt-get install make" in run.stderr


def test_ci_runs_only_targets_that_the_makefile_has():
    text = (ROOT / ".ci" / "run").read_text()
    stages = set(re.findall(r"\bstage \S+ make ([a-z0-9-]+)", text))
    assert {"install", "lint", "types", "imports", "test", "sim", "demo"} <= stages
    assert stages <= make_targets()


def test_plugin_and_daemon_bear_one_version():
    """`rlmm doctor` holds what the plugin says against the daemon's."""
    pom = (ROOT / "deploy/plugin/pom.xml").read_text()
    source = ROOT / "deploy/plugin/src/main/java/rlmm/daemon/kafka/Greeting.java"
    said = re.search(r'VERSION = "([^"]+)"', source.read_text())
    assert said is not None
    assert said[1] == __version__
    assert f"<version>{__version__}</version>" in pom.partition("<dependencies>")[0]
