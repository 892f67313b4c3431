"""What a listing does with what it can't read, of whichever storage: it says so."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.config import Config, parse
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import listing
from rlmm_daemon.reconcile.read.listing import Slice
from tests.unit.reconcile.configured import LOCAL

Scan = Callable[[str], object]
#: As a daemon names them, so that what lies there may be a segment's.
ORDERS = f"orders-0-{uuid_text(bytes(16))}"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for key in (f"{ORDERS}/a/one.log", f"{ORDERS}/two.log", "stray"):
        path = tmp_path / "remote" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "remote" / "_rlmm").mkdir()
    (tmp_path / "remote" / "_rlmm" / "marker.json").touch()
    return parse(LOCAL.format(home=tmp_path))


def keys(config: Config, *layouts: str, notes: list[str] | None = None) -> list[str]:
    told: list[str] = [] if notes is None else notes
    parts = listing.slices(config, layouts or [""], told.append)
    sent = msgspec.json.decode(msgspec.json.encode(parts), type=list[Slice])
    batches = [batch for part in sent for batch in listing.listed(config, part)]
    return sorted(key for batch in batches for key in batch["key"].to_pylist())


def failing(where: str, code: int, scan: Scan) -> Scan:
    def scandir(path: str) -> object:
        if str(path).rstrip("/").endswith(where):
            raise OSError(code, os.strerror(code), str(path))
        return scan(path)

    return scandir


def test_local_files_are_listed(config: Config) -> None:
    assert keys(config) == [f"{ORDERS}/a/one.log", f"{ORDERS}/two.log", "stray"]


@pytest.mark.parametrize("where", ["remote", ORDERS, f"{ORDERS}/a"])
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
    monkeypatch.setattr(os, "scandir", failing(f"{ORDERS}/a", errno.ENOENT, os.scandir))
    assert keys(config) == [f"{ORDERS}/two.log", "stray"]


def test_a_storage_that_is_not_mounted_is_never_an_empty_one(
    config: Config, tmp_path: Path
) -> None:
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    with pytest.raises(Incomplete, match="there is no directory"):
        keys(config)


@pytest.mark.parametrize("left", ["nothing", "an empty mount point"])
def test_a_storage_that_is_unmounted_meanwhile_or_elsewhere_has_lost_nothing(
    config: Config, tmp_path: Path, left: str
) -> None:
    parts = listing.slices(config, [""])
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    if left != "nothing":
        (tmp_path / "remote").mkdir()
    for part in parts:
        with pytest.raises(Incomplete, match="is not mounted here"):
            list(listing.objects(config, part))
    with pytest.raises(Incomplete, match="is not mounted here"):
        listing.look_up(config, f"{ORDERS}/two.log")


def test_a_storage_that_is_unmounted_while_it_is_walked_is_not_an_empty_one(
    config: Config, tmp_path: Path
) -> None:
    walk = listing.objects(config, Slice(f"{ORDERS}/"))
    assert next(walk).key == f"{ORDERS}/two.log"
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    with pytest.raises(Incomplete, match="is not mounted here"):
        list(walk)


def test_what_is_gone_from_a_storage_that_is_there_is_absent(config: Config) -> None:
    assert listing.look_up(config, f"{ORDERS}/three.log") is None


def test_a_prefix_below_which_nothing_was_put_is_empty(config: Config) -> None:
    assert listing.slices(config, ["later"]) == [Slice("later/", shallow=True)]
    assert not [*listing.objects(config, Slice("later/", shallow=True))]


async def test_what_a_storage_keeps_for_itself_is_no_object(config: Config, tmp_path: Path) -> None:
    before = keys(config)
    storage = LocalStorage(str(tmp_path / "remote"), owner="1")
    await storage.open()
    try:
        await storage.put_control("_rlmm/lease.json", b"{}", if_etag=None)
    finally:
        await storage.close()
    assert [*(tmp_path / "remote" / ".rlmm").rglob("*")], "its lock lies there"
    assert keys(config) == before
    (tmp_path / "remote" / "tier" / ".rlmm").mkdir(parents=True)
    (tmp_path / "remote" / "tier" / ".rlmm" / "one").touch()
    assert keys(config) == [*before, "tier/.rlmm/one"], "below the root it is anybody's"


def test_a_strangers_directory_that_can_not_be_read_is_told_and_passed_over(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys(config)
    (tmp_path / "remote" / "lost+found").mkdir()
    monkeypatch.setattr(os, "scandir", failing("lost+found", errno.EACCES, os.scandir))
    notes: list[str] = []
    assert keys(config, notes=notes) == before
    assert len(notes) == 1
    assert "lost+found" in notes[0]


@pytest.mark.parametrize("name", [ORDERS, "tier", "tier/hot", "3f", "0123abcd"])
def test_a_directory_that_a_layout_may_use_is_never_passed_over(
    config: Config, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote" / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(os, "scandir", failing(name, errno.EACCES, os.scandir))
    with pytest.raises(Incomplete, match="was cut short"):
        keys(config, "", "tier/hot")


def test_a_name_that_is_no_text_is_a_strangers(config: Config, tmp_path: Path) -> None:
    before = keys(config)
    odd = os.fsencode(tmp_path / "remote") + b"/caf\xe9"
    Path(os.fsdecode(odd)).touch()
    inside = f"{ORDERS}/a/caf".encode() + b"\xe9"
    Path(os.fsdecode(os.fsencode(tmp_path / "remote") + b"/" + inside)).touch()
    Path(os.fsdecode(odd + b"s")).mkdir()
    notes: list[str] = []
    assert keys(config, notes=notes) == sorted([*before, "caf\ufffd", f"{ORDERS}/a/caf\ufffd"])
    assert len(notes) == 1, "a directory of such a name is told of once"
    assert r"caf\udce9s" in notes[0]


def test_what_lies_behind_a_broken_link_is_not_gone(config: Config, tmp_path: Path) -> None:
    """A partition's directory was moved to another disk and linked, and that is not mounted."""
    (tmp_path / "remote" / ORDERS).rename(tmp_path / "disk")
    (tmp_path / "remote" / ORDERS).symlink_to(tmp_path / "disk")
    (tmp_path / "remote" / "strangers").symlink_to(tmp_path / "nowhere")
    every = keys(config)
    assert f"{ORDERS}/two.log" in every
    (tmp_path / "disk").rename(tmp_path / "away")
    for ask in (
        lambda: keys(config),
        lambda: listing.look_up(config, f"{ORDERS}/two.log"),
        lambda: [*listing.listed(config, Slice(f"{ORDERS}/"))],
    ):
        with pytest.raises(Incomplete, match=f"{ORDERS} is a link to what is not there"):
            ask()
    (tmp_path / "away").rename(tmp_path / "disk")
    assert keys(config) == every


def test_a_prefix_behind_a_broken_link_is_not_empty(config: Config, tmp_path: Path) -> None:
    (tmp_path / "remote" / "kafka").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Incomplete, match="kafka is a link to what is not there"):
        keys(config, "kafka")
