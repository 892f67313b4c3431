import errno
import os
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.daemon.copying.sources import _Directories, _open_source, open_sources
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    InvalidArgument,
    PathNotAllowed,
    StorageUnavailable,
)
from rlmm_daemon.ports.storage import ObjectKind
from tests.unit.daemon.segments import PARTITION, files_in, metadata


def open_source(partition, path, log_dirs):
    with _Directories() as directories:
        return _open_source(partition, path, log_dirs, directories)


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "logs" / "orders-7"
    home.mkdir(parents=True)
    return home


@pytest.fixture
def log_dirs(tmp_path):
    return [str(tmp_path / "other"), str(tmp_path / "logs") + "/"]


def test_all_six_are_opened_in_upload_order(home, log_dirs):
    sources = open_sources(metadata(), files_in(home), log_dirs)
    assert [kind for kind, _ in sources.objects] == list(ObjectKind)
    assert sources.log.pread(0, 5) == b"A" * 5
    sources.close()
    sources.close()


@pytest.mark.parametrize(
    "path",
    [
        "{home}/../orders-8/a.log",
        "{home}/../../secret",
        "{home}",
        "{home}/..",
        "{home}/.",
        "{home}/",
        "{home}/deeper/a.log",
        "{logs}/orders-8/a.log",
        "{logs}/orders-70/a.log",
        "{logs}/a.log",
        "/etc/passwd",
        "relative.log",
        "",
        "{logs}//orders-7/a.log",
        "{logs}-more/orders-7/a.log",
    ],
)
def test_a_path_outside_the_partitions_directory_is_refused(home, log_dirs, tmp_path, path):
    for other in ("orders-8", "orders-70"):
        (tmp_path / "logs" / other).mkdir()
        (tmp_path / "logs" / other / "a.log").write_bytes(b"theirs")
    asked = path.format(home=home, logs=tmp_path / "logs")
    with pytest.raises(PathNotAllowed) as refused:
        open_source(PARTITION, asked, log_dirs)
    assert refused.value.fields["path"] == asked


@pytest.mark.parametrize(
    "path",
    [
        "{home}/a\0.log",
        "\0",
        "{home}\0/a.log",
        "{logs}\0/orders-7/a.log",
        "{home}/\ud800.log",
        "{home}/" + "n" * 256,
        "{home}/" + "n" * 5000,
        "{home}/" + "n" * 1_000_000,
        "{home}//a.log",
        "//",
        "{home}/a.log/",
    ],
    ids=lambda path: ascii(path[:24]),
)
def test_what_no_file_can_be_named_is_refused_and_shown_so_that_it_can_be_answered(
    home, log_dirs, tmp_path, path
):
    (home / "a.log").write_bytes(b"mine")
    with pytest.raises(PathNotAllowed) as refused:
        open_source(PARTITION, path.format(home=home, logs=tmp_path / "logs"), log_dirs)
    answered = (refused.value.message, refused.value.fields["path"])
    assert len(msgspec.msgpack.encode(answered)) < 4096
    assert all(text.isprintable() for text in answered)


def test_a_partition_whose_name_holds_a_nul_has_no_directory(log_dirs, tmp_path):
    partition = PARTITION._replace(topic="or\0ders")
    with pytest.raises(PathNotAllowed):
        open_source(partition, f"{tmp_path}/logs/or\0ders-7/a.log", log_dirs)


def test_a_symbolic_link_is_refused(home, log_dirs, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (home / "a.log").symlink_to(tmp_path / "secret")
    with pytest.raises(PathNotAllowed):
        open_source(PARTITION, str(home / "a.log"), log_dirs)


def test_a_linked_directory_is_refused(tmp_path, log_dirs):
    (tmp_path / "logs").mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "a.log").write_bytes(b"secret")
    (tmp_path / "logs" / "orders-7").symlink_to(tmp_path / "secrets")
    with pytest.raises(PathNotAllowed):
        open_source(PARTITION, str(tmp_path / "logs/orders-7/a.log"), log_dirs)


def test_a_fifo_and_a_directory_are_refused_at_once(home, log_dirs):
    os.mkfifo(home / "fifo.log")
    (home / "directory.log").mkdir()
    for name in ("fifo.log", "directory.log"):
        with pytest.raises(PathNotAllowed):
            open_source(PARTITION, str(home / name), log_dirs)


def test_a_file_that_is_not_there_is_an_invalid_argument(home, log_dirs):
    with pytest.raises(InvalidArgument):
        open_source(PARTITION, str(home / "none.log"), log_dirs)


def test_a_file_swapped_after_it_was_opened_is_not_read(home, log_dirs, tmp_path):
    (home / "a.log").write_bytes(b"mine")
    source = open_source(PARTITION, str(home / "a.log"), log_dirs)
    (tmp_path / "evil").write_bytes(b"evil")
    (tmp_path / "evil").rename(home / "a.log")
    assert source.pread(0, 4) == b"mine"
    source.close()


def test_a_file_that_changes_is_noticed(home, log_dirs):
    (home / "a.log").write_bytes(b"mine")
    source = open_source(PARTITION, str(home / "a.log"), log_dirs)
    source.check_unchanged()
    with (home / "a.log").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ChecksumMismatch):
        source.check_unchanged()
    os.truncate(home / "a.log", 2)
    with pytest.raises(ChecksumMismatch):
        source.pread(0, 4)
    source.close()


def test_a_segments_directory_is_opened_once_and_let_go(home, log_dirs, monkeypatch):
    files = files_in(home)
    directories: list[object] = []
    real = os.open

    def counted(path, flags, *more, **where):
        if flags & os.O_DIRECTORY:
            directories.append(path)
        return real(path, flags, *more, **where)

    monkeypatch.setattr(os, "open", counted)
    before = len(list(Path("/proc/self/fd").iterdir()))
    sources = open_sources(metadata(), files, log_dirs)
    assert len(directories) == len(["the log directory", "the partition's"])
    sources.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_told_with_the_files_name(home, log_dirs, monkeypatch, code):
    (home / "a.log").write_bytes(b"mine")
    source = open_source(PARTITION, str(home / "a.log"), log_dirs)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    for call, use in (("pread", lambda: source.pread(0, 4)), ("fstat", source.check_unchanged)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(StorageUnavailable) as caught:
                use()
        assert str(home / "a.log") in caught.value.message
        assert os.strerror(code) in caught.value.message
        assert caught.value.fields["reason"] == "source_unreadable"
    source.close()


@pytest.mark.parametrize(
    ("empty", "content", "kinds"),
    [(False, b"txn", 6), (True, b"", 5), (True, None, 5)],
)
def test_the_recorded_word_decides_on_the_transaction_index(home, log_dirs, empty, content, kinds):
    files = files_in(home, transactions=content)
    before = len(list(Path("/proc/self/fd").iterdir()))
    sources = open_sources(metadata(txn_index_empty=empty), files, log_dirs)
    assert len(sources.objects) == kinds
    sources.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("empty", "content"), [(True, b"txn"), (False, None)])
def test_a_transaction_index_against_the_record_is_refused(home, log_dirs, empty, content):
    files = files_in(home, transactions=content)
    with pytest.raises(InvalidArgument):
        open_sources(metadata(txn_index_empty=empty), files, log_dirs)


def test_a_log_of_another_length_than_recorded_is_refused(home, log_dirs):
    with pytest.raises(InvalidArgument):
        open_sources(metadata(segment_size_bytes=9), files_in(home), log_dirs)


def test_a_refusal_leaks_no_descriptor(home, log_dirs):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidArgument):
        open_sources(metadata(segment_size_bytes=9), files_in(home), log_dirs)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_becomes_another_one_while_it_is_opened_is_refused(home, log_dirs, monkeypatch):
    looked = Path(__file__).stat()
    os.mkfifo(home / "a.log")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_, **__: looked)
        with pytest.raises(PathNotAllowed):
            open_source(PARTITION, str(home / "a.log"), log_dirs)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
