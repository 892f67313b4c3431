"""The local storage on real file systems that are full, read-only or gone; needs `mount`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.domain.errors import StorageFull, StorageUnavailable
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import keys, read, uploads

MIB = 1024 * 1024
KEY = "d/a.log"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    home = tmp_path / "small"
    home.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True, capture_output=True, timeout=30)


@pytest.fixture
async def storage(small):
    storage = LocalStorage(str(small), owner="1")
    await storage.open()
    yield storage
    await storage.close()


async def put(storage: LocalStorage, tmp_path: Path, size: int) -> Progress:
    path, progress = tmp_path / "source", Progress()
    path.write_bytes(os.urandom(size))
    source = FileSource(os.open(path, os.O_RDONLY), str(path))
    try:
        await storage.put_segment([(ObjectKind.LOG, KEY, source)], progress=progress)
    finally:
        source.close()
    return progress


async def test_what_does_not_fit_is_refused_before_anything_is_written(storage, tmp_path):
    with pytest.raises(StorageFull):
        await put(storage, tmp_path, 9 * MIB)
    assert await keys(storage) == set()
    await put(storage, tmp_path, 2 * MIB)
    assert len(await read(storage, KEY)) == 2 * MIB


async def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(
    storage, small, tmp_path, monkeypatch
):
    """Somebody else takes the room between our question and our write."""
    hog, real = small / "hog", os.copy_file_range

    def copy_and_fill(*args: int) -> int:
        if not hog.exists():
            hog.write_bytes(bytes(5 * MIB))
        return real(*args)

    monkeypatch.setattr(os, "copy_file_range", copy_and_fill)
    with pytest.raises(StorageFull) as refusal:
        await put(storage, tmp_path, 6 * MIB)
    assert refusal.value.fields["errno"] == "ENOSPC"
    assert await keys(storage) == {"hog"}
    assert await uploads(storage) == []
    monkeypatch.undo()
    hog.unlink()
    await put(storage, tmp_path, 6 * MIB)
    assert len(await read(storage, KEY)) == 6 * MIB


async def test_a_file_system_that_became_read_only_is_told_and_reads_go_on(
    storage, small, tmp_path
):
    await put(storage, tmp_path, MIB)
    mount("-o", "remount,ro", str(small))
    with pytest.raises(StorageUnavailable) as refusal:
        await put(storage, tmp_path, MIB)
    assert refusal.value.fields["errno"] == "EROFS"
    assert len(await read(storage, KEY)) == MIB
    assert isinstance((await storage.delete([KEY]))[KEY], StorageUnavailable)


async def test_a_source_that_vanishes_in_the_middle_is_copied_whole(storage, tmp_path, monkeypatch):
    """Kafka deletes a local segment by its name; the open file is still all there."""
    real = os.copy_file_range

    def copy_and_unlink(*args: int) -> int:
        (tmp_path / "source").unlink(missing_ok=True)
        return real(*args)

    monkeypatch.setattr(os, "copy_file_range", copy_and_unlink)
    await put(storage, tmp_path, 5 * MIB)
    assert len(await read(storage, KEY)) == 5 * MIB
