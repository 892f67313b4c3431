"""Packages, built once for the run, and roots to install them into.

Asked for by RLMM_TEST_PACKAGES=1 (`make test-packages`), which builds what they need.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rlmm_daemon import __version__
from tests.packages.root import Root, copy_of
from tests.support.daemon_process import REPOSITORY

HERE = Path(__file__).parent
NEWER = "99.0.0"
REQUESTED = bool(os.environ.get("RLMM_TEST_PACKAGES"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
            if not REQUESTED:
                item.add_marker(pytest.mark.skip(reason="needs packages: RLMM_TEST_PACKAGES=1"))


class Built:
    """Packages of one version, by their name and kind."""

    def __init__(self, directory: Path, version: str) -> None:
        self.directory, self.version = directory, version

    def file(self, name: str, kind: str) -> Path:
        separator = {"deb": "_", "rpm": "-"}[kind]
        [found] = self.directory.glob(f"{name}{separator}{self.version}-1*.{kind}")
        return found


def build(into: Path, *names: str, versions: Sequence[str], key: Path | None = None) -> None:
    wheels = into / "wheel"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels],
        cwd=REPOSITORY, check=True, capture_output=True,
    )  # fmt: skip
    [wheel] = wheels.glob("*.whl")
    done = subprocess.run(
        [sys.executable, REPOSITORY / "deploy" / "packages" / "build.py", "--wheel", wheel,
         "--into", into, *(f"--version={each}" for each in versions), *names],
        capture_output=True, text=True, check=False,
        env=os.environ | ({"RLMM_SIGNING_KEY": str(key)} if key else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(wheels)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    into = tmp_path_factory.mktemp("packages")
    build(into, versions=[__version__, NEWER])
    return Built(into, __version__)


@pytest.fixture
def newer(built: Built) -> Built:
    """The same files under the next version."""
    return Built(built.directory, NEWER)


@pytest.fixture
def root() -> Iterator[Root]:
    with copy_of(Path(os.environ.get("RLMM_PACKAGES_ROOT", "/"))) as it:
        yield it
