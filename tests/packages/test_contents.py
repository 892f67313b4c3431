"""What is in the packages: nothing of the machine that built them, and all that they promise."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from rlmm_daemon.cli.group import COMMANDS
from rlmm_daemon.daemon.operator.page.files import FILES
from tests.packages.conftest import Built, build
from tests.support.daemon_process import REPOSITORY

SITE = "opt/rlmm/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def tree(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("tree")
    subprocess.run(["dpkg-deb", "-x", built.file("rlmm-daemon", "deb"), into], check=True)
    return into


def test_no_file_names_the_machine_that_built_it(tree: Path):
    ours = [str(REPOSITORY).encode(), b"rlmm-packages-", str(Path.home()).encode() + b"/.pyenv"]
    files = [each for each in tree.rglob("*") if each.is_file() and not each.is_symlink()]
    found = [each for each in files if any(path in each.read_bytes() for path in ours)]
    assert len(files) > 1000
    assert not found


def test_its_python_is_the_systems(tree: Path):
    programs = tree / "opt" / "rlmm" / "bin"
    assert str((programs / "python3.11").readlink()) == "/usr/bin/python3.11"
    assert (programs / "rlmm").read_text().startswith("#!/opt/rlmm/bin/python3.11\n")
    assert str((tree / "usr" / "bin" / "rlmm").readlink()) == "/opt/rlmm/bin/rlmm"


def test_every_module_is_compiled(tree: Path):
    package = tree / SITE / "rlmm_daemon"
    modules = list(package.rglob("*.py"))
    assert len(modules) == len(list(package.rglob("*.pyc"))) > 100


def test_nothing_may_be_written_by_others(tree: Path):
    for each in tree.rglob("*"):
        if not each.is_symlink():
            assert not each.stat().st_mode & 0o6022, each


def test_each_command_has_its_page_and_roff_has_nothing_to_say(tree: Path):
    pages = {each.name for each in (tree / "usr/share/man/man1").iterdir()}
    assert pages == {"rlmm.1", *(f"rlmm-{name}.1" for name in COMMANDS)}
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8", *sorted((tree / "usr/share/man/man1").iterdir())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_alerts_dashboard_and_page_come_with_it(tree: Path):
    examples = tree / "usr/share/doc/rlmm-daemon/examples"
    for name in ("rlmm.rules.yml", "rlmm.dashboard.json"):
        made = REPOSITORY / "deploy" / "monitoring" / name
        assert (examples / name).read_text() == made.read_text()
    page = tree / SITE / "rlmm_daemon/daemon/operator/page"
    assert {each.name for each in (page / "static").iterdir()} == set(FILES.values())


def test_the_bill_names_what_the_lock_does(tree: Path):
    bill = json.loads((tree / "usr/share/doc/rlmm-daemon/sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    lock = (REPOSITORY / "requirements.lock").read_text()
    locked = dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^\s;]+)", lock))
    named = {each["name"]: each["version"] for each in bill["components"]}
    assert named == {name: locked[name] for name in named}
    needless = {name for name in locked if name not in named}
    assert needless <= {"async-timeout", "winloop", "tzdata"}  # of other systems
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])


def listed(file: Path) -> set[str]:
    if file.suffix == ".rpm":
        out = subprocess.run(["rpm", "-qpl", file], capture_output=True, text=True, check=True)
        return set(out.stdout.splitlines())
    out = subprocess.run(["dpkg-deb", "-c", file], capture_output=True, text=True, check=True)
    lines = (line.split(None, 5)[5].partition(" -> ")[0] for line in out.stdout.splitlines())
    return {line.removeprefix(".") for line in lines if not line.endswith("/")}


@pytest.mark.parametrize("name", ["rlmm-daemon", "rlmm-kafka-plugin"])
def test_deb_and_rpm_hold_the_same_files(built: Built, name: str):
    deb, rpm = (listed(built.file(name, kind)) for kind in ("deb", "rpm"))
    assert len(deb) > 3
    assert deb == {each for each in rpm if each in deb or not is_directory(each, rpm)}


def is_directory(path: str, listing: set[str]) -> bool:
    return any(each.startswith(f"{path}/") for each in listing)


def test_no_two_of_them_hold_the_same_file(built: Built):
    daemon, plugin = (
        listed(built.file(name, "deb")) for name in ("rlmm-daemon", "rlmm-kafka-plugin")
    )
    assert not daemon & plugin


KEY = """\
%no-protection
Key-Type: RSA
Key-Length: 2048
Name-Real: throw-away
Name-Email: nobody@example.org
Expire-Date: 1d
%commit
"""


def test_a_key_signs_both_kinds(tmp_path: Path):
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)

    def gpg(*words: str | Path, given: str | bytes = b"") -> bytes:
        data = given.encode() if isinstance(given, str) else given
        done = subprocess.run(
            ["gpg", "--homedir", home, "--batch", *words],
            input=data, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    gpg("--generate-key", given=KEY)
    secret, public = tmp_path / "secret.asc", tmp_path / "public.asc"
    secret.write_bytes(gpg("--armor", "--export-secret-keys"))
    public.write_bytes(gpg("--armor", "--export"))
    build(tmp_path / "out", "rlmm-kafka-plugin", versions=["1.0.0"], key=secret)
    signed = Built(tmp_path / "out", "1.0.0")

    database = tmp_path / "rpmdb"
    subprocess.run(["rpm", "--dbpath", database, "--initdb"], check=True)
    subprocess.run(["rpm", "--dbpath", database, "--import", public], check=True)
    rpm = signed.file("rlmm-kafka-plugin", "rpm")
    said = subprocess.run(
        ["rpm", "--dbpath", database, "-K", rpm], capture_output=True, text=True, check=True
    )
    assert "digests signatures OK" in said.stdout

    deb = signed.file("rlmm-kafka-plugin", "deb")
    members = subprocess.run(
        ["ar", "t", deb], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "_gpgorigin" in members
    subprocess.run(["ar", "x", deb], cwd=tmp_path, check=True)
    whole = b"".join((tmp_path / each).read_bytes() for each in members if each != "_gpgorigin")
    gpg("--verify", tmp_path / "_gpgorigin", "-", given=whole)
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
