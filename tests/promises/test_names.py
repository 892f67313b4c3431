"""Names that scripts, dashboards and programs hold on to stay, or their old ones beside them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promises import names
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, make

ADVICE = (
    "users hold these names: keep an old one beside the new for a release and say so in "
    "CHANGELOG.md; then pytest --rewrite tests/promises"
)


@pytest.fixture
def rewrite(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--rewrite"))


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Stocked]:
    with ForkServer() as forks:
        stocked = make(tmp_path, forks)
        with stocked.daemon:
            stocked.stock()
            yield stocked


def held(kind: str, found: list[str], *, rewrite: bool) -> None:
    if rewrite:
        names.write(names.read() | {kind: found})
    kept = names.read()[kind]
    assert not [name for name in kept if name not in found], ADVICE
    assert found == kept, f"new ones are held from now on: pytest --rewrite {Path(__file__).parent}"


@pytest.mark.parametrize("kind", names.read())
def test_no_name_goes_unnoticed(kind, rewrite, request):
    if kind == names.FILES:
        it = request.getfixturevalue("it")
        it.rlmm("snapshot", "now")
        it.daemon.stop()
        found = names.made(it.state_dir, it.daemon.remote)
    else:
        found = names.current()[kind]
    held(kind, found, rewrite=rewrite)


def test_every_kind_of_name_is_kept():
    assert set(names.read()) == {*names.current(), names.FILES}
