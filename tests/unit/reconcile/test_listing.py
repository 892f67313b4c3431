"""What a listing does with what it can't read, of whichever storage: it says so."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlmm_daemon.config import Config, parse
from rlmm_daemon.reconcile import listing
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.listing import Slice
from tests.unit.reconcile.configured import LOCAL

Scan = Callable[[str], object]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for key in ("orders-0/a/one.log", "orders-0/two.log", "stray"):
        path = tmp_path / "remote" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return parse(LOCAL.format(home=tmp_path))


def keys(config: Config) -> list[str]:
    parts = listing.slices(config, [""])
    return sorted(each.key for part in parts for each in listing.objects(config, part))


def failing(where: str, code: int, scan: Scan) -> Scan:
    def scandir(path: str) -> object:
        if str(path).rstrip("/").endswith(where):
            raise OSError(code, os.strerror(code), str(path))
        return scan(path)

    return scandir


def test_local_files_are_listed(config: Config) -> None:
    assert keys(config) == ["orders-0/a/one.log", "orders-0/two.log", "stray"]


@pytest.mark.parametrize("where", ["remote", "orders-0", "orders-0/a"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_directory_that_can_not_be_read_is_never_an_empty_one(
    config: Config, where: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", failing(where, code, os.scandir))
    with pytest.raises(Incomplete, match="was cut short"):
        keys(config)


def test_a_directory_that_is_deleted_meanwhile_is_empty(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", failing("orders-0/a", errno.ENOENT, os.scandir))
    assert keys(config) == ["orders-0/two.log", "stray"]


def test_a_storage_that_is_not_mounted_is_never_an_empty_one(
    config: Config, tmp_path: Path
) -> None:
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    with pytest.raises(Incomplete, match="there is no directory"):
        keys(config)


def test_a_prefix_below_which_nothing_was_put_is_empty(config: Config) -> None:
    assert listing.slices(config, ["later"]) == [Slice("later/", shallow=True)]
    assert not [*listing.objects(config, Slice("later/", shallow=True))]
