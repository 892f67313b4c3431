"""`make packages`: deb and rpm of the daemon, of the broker's plugin and of the nightly job.

Wheels are installed from the lock files, hashes checked, into a tree that becomes /opt/rlmm: an
environment of the system's own Python 3.11, that knows no path of the machine that built it.
"""  # noqa: INP001 - a script, no package

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

import man_pages
import nfpm
import sbom

REPOSITORY: Final = nfpm.REPOSITORY
HOME: Final = REPOSITORY / "var" / "packages"
NFPM: Final = HOME / "tools" / "nfpm"
PLUGIN: Final = REPOSITORY / "deploy" / "plugin" / "target" / "rlmm-kafka-plugin.jar"
SYSTEMD: Final = REPOSITORY / "deploy" / "systemd"
_PYTHON: Final = "python3.11"
_SITE: Final = f"opt/rlmm/lib/{_PYTHON}/site-packages"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
#: What names its interpreter by the path that the packages give it.
_COMMAND: Final = """\
#!/opt/rlmm/bin/python3.11
import sys

from rlmm_daemon.cli import main

if __name__ == "__main__":
    sys.argv[0] = "rlmm"
    sys.exit(main())
"""
_COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/rlmm",
    "zsh": "usr/share/zsh/site-functions/_rlmm",
    "fish": "usr/share/fish/vendor_completions.d/rlmm.fish",
}
#: The reconciliation's tests compare with it; the job itself does not need it.
_ONLY_OF_TESTS: Final = "duckdb"


def main() -> int:
    """Build what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--into", type=Path, default=REPOSITORY / "dist")
    parser.add_argument(
        "--version",
        action="append",
        help="of the packages, by default the wheel's; of several each has the same files",
    )
    parser.add_argument("names", nargs="*", default=["rlmm-daemon", "rlmm-kafka-plugin"])
    asked = parser.parse_args()
    versions = asked.version or [asked.wheel.name.split("-")[1]]
    asked.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlmm-packages-") as staged:
        for name in asked.names:
            tree = Path(staged) / name
            STAGES[name](tree, asked.wheel.resolve(), versions[0])
            for version, packager in itertools.product(versions, ("deb", "rpm")):
                sys.stdout.write(f"{_pack(name, tree, version, packager, asked.into)}\n")
    return 0


def _daemon(tree: Path, wheel: Path, version: str) -> None:
    _install(tree / _SITE, REPOSITORY / "requirements.lock")
    _install(tree / _SITE, wheel)
    _cleaned(tree / _SITE)
    _environment(tree / "opt" / "rlmm")
    _compiled(tree)
    unit = "usr/lib/systemd/system"
    _copy(SYSTEMD / "rlmm-daemon.service", tree / unit)
    _copy(SYSTEMD / "rlmm-daemon.sysusers.conf", tree / "usr/lib/sysusers.d", "rlmm-daemon.conf")
    _copy(SYSTEMD / "rlmm-daemon.tmpfiles.conf", tree / "usr/lib/tmpfiles.d", "rlmm-daemon.conf")
    _copy(REPOSITORY / "config" / "rlmm.toml", tree / "usr/share/doc/rlmm-daemon/examples")
    for monitoring in ("rlmm.rules.yml", "rlmm.dashboard.json"):
        _copy(
            REPOSITORY / "deploy" / "monitoring" / monitoring,
            tree / "usr/share/doc/rlmm-daemon/examples",
        )
    man_pages.write(tree / "usr/share/man/man1")
    for shell, place in _COMPLETIONS.items():
        target = tree / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_completion(shell))
    command = tree / "usr" / "bin" / "rlmm"
    command.parent.mkdir(parents=True)
    command.symlink_to("/opt/rlmm/bin/rlmm")
    _documents(tree, "rlmm-daemon")
    _bill(tree, "rlmm-daemon", sbom.of_distributions("rlmm-daemon", version, tree / _SITE))


def _reconcile(tree: Path, _: Path, version: str) -> None:
    """Lay out what the nightly job needs beyond the daemon's package."""
    with tempfile.TemporaryDirectory(prefix="rlmm-base-") as base:
        _install(Path(base), REPOSITORY / "requirements.lock")
        lock = Path(base) / "spark.lock"
        entries = re.split(
            r"(?m)^(?=[a-z0-9])", (REPOSITORY / "requirements-spark.lock").read_text()
        )
        lock.write_text("".join(each for each in entries if not each.startswith(_ONLY_OF_TESTS)))
        _install(tree / _SITE, lock, wheels_only=False)
        for each in Path(base).iterdir():
            there = tree / _SITE / each.name
            if there.is_dir():
                shutil.rmtree(there)
            else:
                there.unlink(missing_ok=True)
    _cleaned(tree / _SITE)
    _compiled(tree)
    unit = tree / "usr/lib/systemd/system"
    for name in ("rlmm-reconcile.service", "rlmm-reconcile.timer"):
        _copy(SYSTEMD / name, unit)
    _documents(tree, "rlmm-reconcile")
    _bill(tree, "rlmm-reconcile", sbom.of_distributions("rlmm-reconcile", version, tree / _SITE))


def _plugin(tree: Path, _: Path, version: str) -> None:
    _copy(PLUGIN, tree / "opt" / "rlmm")
    _copy(
        SYSTEMD / "kafka.service.d" / "rlmm.conf", tree / "usr/lib/systemd/system/kafka.service.d"
    )
    _copy(
        REPOSITORY / "deploy/kafka/rlmm.properties",
        tree / "usr/share/doc/rlmm-kafka-plugin/examples",
    )
    _documents(tree, "rlmm-kafka-plugin")
    _bill(tree, "rlmm-kafka-plugin", sbom.of_file("rlmm-kafka-plugin", version, PLUGIN))


STAGES: Final = {"rlmm-daemon": _daemon, "rlmm-reconcile": _reconcile, "rlmm-kafka-plugin": _plugin}


def _install(target: Path, what: Path, *, wheels_only: bool = True) -> None:
    """Install a lock file, hashes checked, or a wheel without what it depends on."""
    of_lock = ["--require-hashes", "-r", str(what)]
    wanted = ["--no-deps", str(what)] if what.suffix == ".whl" else of_lock
    if wheels_only:
        wanted = ["--only-binary", ":all:", *wanted]
    uv = Path(sys.executable).with_name("uv")
    _run([uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", target, *wanted])


def _cleaned(site: Path) -> None:
    """Remove what tells of the machine that built it, and commands that nobody calls."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    for name in ("direct_url.json", "uv_cache.json", "REQUESTED", "RECORD"):
        for each in site.glob(f"*.dist-info/{name}"):
            each.unlink()
    for each in (site / ".lock", *site.rglob("__pycache__")):
        shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)


def _environment(home: Path) -> None:
    """Make a tree an environment of the system's Python, without copying it."""
    home.joinpath("pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
    )
    programs = home / "bin"
    programs.mkdir()
    (programs / _PYTHON).symlink_to(f"/usr/bin/{_PYTHON}")
    for name in ("python3", "python"):
        (programs / name).symlink_to(_PYTHON)
    command = programs / "rlmm"
    command.write_text(_COMMAND)
    command.chmod(0o755)


def _compiled(tree: Path) -> None:
    """Compile all modules: the daemon's user may not write there, and each start would again."""
    _run(
        [
            sys.executable, "-m", "compileall", "-q", "-j", "2", "-s", tree, "-p", "/",
            "--invalidation-mode", "unchecked-hash", tree / "opt",
        ]
    )  # fmt: skip


def _completion(shell: str) -> str:
    rlmm = Path(sys.executable).with_name("rlmm")
    environment = os.environ | {"_RLMM_COMPLETE": f"{shell}_source"}
    done = subprocess.run([rlmm], env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return done.stdout


def _documents(tree: Path, name: str) -> None:
    home = tree / "usr" / "share" / "doc" / name
    _copy(REPOSITORY / "LICENSE", home, "copyright")
    _copy(REPOSITORY / "CHANGELOG.md", home)


def _bill(tree: Path, name: str, document: dict[str, object]) -> None:
    file = tree / "usr" / "share" / "doc" / name / "sbom.cdx.json"
    file.write_text(json.dumps(document, indent=1) + "\n")


def _pack(name: str, tree: Path, version: str, packager: str, into: Path) -> Path:
    for each in tree.rglob("*"):
        if not each.is_symlink():
            each.chmod(0o755 if each.is_dir() or each.stat().st_mode & 0o100 else 0o644)
    architecture = _ARCHITECTURES[platform.machine()]
    said = nfpm.configuration(
        name, tree, version=version, architecture=architecture, packager=packager
    )
    file = tree.with_suffix(f".{packager}.json")  # JSON is YAML
    file.write_text(json.dumps(said))
    done = _run([NFPM, "package", "--config", file, "--packager", packager, "--target", f"{into}/"])
    made = re.search(r"created package: (\S+)", done)
    assert made is not None, done
    return into / Path(made[1]).name


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _copy(file: Path, directory: Path, name: str | None = None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, directory / (name or file.name))


if __name__ == "__main__":
    sys.exit(main())
