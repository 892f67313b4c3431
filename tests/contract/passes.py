"""What every `ports.passes.Passes` does, whoever makes the passes."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed
from rlmm_daemon.domain.ids import Offset, SegmentId
from rlmm_daemon.ports.passes import Claims, Passes, PassStopped
from rlmm_daemon.ports.sources import BufferSource, FileSource
from tests.support import kafka_segments

#: Larger than what a process leaves to the thread that asks, and no whole number of blocks.
BYTES = 5 * 1024 * 1024 + 4321
SIZES = [0, 1, 4321, 1024 * 1024, BYTES]


class Target:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


class PassesContract:
    @pytest.fixture
    def passes(self) -> Iterator[Passes]:
        raise NotImplementedError

    @pytest.fixture
    def target(self, tmp_path) -> Iterator[Target]:
        target = Target(tmp_path / "target")
        yield target
        os.close(target.descriptor)

    @pytest.fixture
    def stop(self) -> threading.Event:
        return threading.Event()

    def file(self, tmp_path: Path, content: bytes) -> FileSource:
        path = tmp_path / "source"
        path.write_bytes(content)
        return FileSource(os.open(path, os.O_RDONLY), str(path))

    def big(self, tmp_path: Path) -> tuple[FileSource, Claims]:
        placed = kafka_segments.place(tmp_path / "logs")
        pattern = placed[next(iter(placed))][-1]
        big = kafka_segments.enlarge(pattern, SegmentId(bytes([9] * 16)), BYTES)
        path = f"{big.stem}.log"
        claims = Claims(
            start_offset=big.metadata.start_offset,
            end_offset=big.metadata.end_offset,
            size_bytes=big.metadata.segment_size_bytes,
        )
        return FileSource(os.open(path, os.O_RDONLY), path), claims

    @pytest.mark.parametrize("reads", [True, False])
    @pytest.mark.parametrize("size", SIZES)
    def test_a_copy_is_the_source_and_its_sums_say_so(self, passes, tmp_path, target, size, reads):
        stop = threading.Event()
        content = os.urandom(size)
        source = self.file(tmp_path, content)
        moved: list[int] = []
        done = passes.copy(source, target.descriptor, reads=reads, stop=stop, moved=moved.append)
        assert target.path.read_bytes() == content
        assert done.written == crc32c(content)
        assert done.read == (crc32c(content) if reads else None)
        assert sum(moved) == size
        source.close()

    def test_bytes_that_are_no_file_are_copied_too(self, passes, target, stop):
        content = os.urandom(BYTES)
        source = BufferSource(content)
        done = passes.copy(source, target.descriptor, reads=True, stop=stop, moved=lambda _: None)
        assert (done.written, done.read) == (crc32c(content), crc32c(content))
        assert target.path.read_bytes() == content

    @pytest.mark.parametrize("size", SIZES)
    def test_a_file_that_nothing_is_claimed_of_is_summed(self, passes, tmp_path, stop, size):
        content = os.urandom(size)
        source = self.file(tmp_path, content)
        assert passes.check(source, None, stop=stop) == crc32c(content)
        source.close()

    def test_a_sound_segment_passes(self, passes, tmp_path, stop):
        source, claims = self.big(tmp_path)
        assert passes.check(source, claims, stop=stop) == crc32c(Path(source.name).read_bytes())
        source.close()

    def test_a_damaged_batch_is_named(self, passes, tmp_path, stop):
        source, claims = self.big(tmp_path)
        with Path(source.name).open("r+b") as file:
            file.seek(3_000_000)
            byte = file.read(1)
            file.seek(3_000_000)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(ChecksumMismatch, match="batch at offset") as caught:
            passes.check(source, claims, stop=stop)
        assert 0 < caught.value.fields["position"] <= 3_000_000
        source.close()

    def test_what_lies_outside_the_claims_is_refused(self, passes, tmp_path, stop):
        source, claims = self.big(tmp_path)
        claims = Claims(
            start_offset=claims.start_offset,
            end_offset=Offset(claims.end_offset - 1),
            size_bytes=claims.size_bytes,
        )
        with pytest.raises(Malformed, match="outside the metadata's") as caught:
            passes.check(source, claims, stop=stop)
        assert caught.value.fields["offset"] <= claims.end_offset
        source.close()

    @pytest.mark.parametrize("left", [0, 17, BYTES // 2])
    def test_a_source_that_became_shorter_is_not_copied(self, passes, tmp_path, target, stop, left):
        class Longer(FileSource):
            size = BYTES

        whole = self.file(tmp_path, bytes(BYTES))
        source = Longer(os.dup(whole.fileno()), whole.name)
        os.truncate(whole.name, left)
        with pytest.raises(ChecksumMismatch, match="shorter"):
            passes.copy(source, target.descriptor, reads=True, stop=stop, moved=lambda _: None)
        with pytest.raises(ChecksumMismatch, match="shorter"):
            passes.check(source, None, stop=stop)
        source.close()
        whole.close()

    def test_a_target_that_cant_be_written_is_the_systems_error(self, passes, tmp_path, stop):
        source = self.file(tmp_path, bytes(BYTES))
        full = os.open("/dev/full", os.O_RDWR)
        with pytest.raises(OSError, match=r"[Nn]o space|Invalid argument"):
            passes.copy(source, full, reads=True, stop=stop, moved=lambda _: None)
        os.close(full)
        source.close()

    def test_one_that_was_stopped_says_so(self, passes, tmp_path, target, stop):
        source = self.file(tmp_path, bytes(BYTES))
        stop.set()
        with pytest.raises(PassStopped):
            passes.copy(source, target.descriptor, reads=True, stop=stop, moved=lambda _: None)
        with pytest.raises(PassStopped):
            passes.check(source, None, stop=stop)
        source.close()

    def test_many_at_once_keep_apart(self, passes, tmp_path):
        outcomes: dict[int, int] = {}

        def one(number: int) -> None:
            path = tmp_path / f"source-{number}"
            path.write_bytes(bytes([number]) * (BYTES + number))
            source = FileSource(os.open(path, os.O_RDONLY), str(path))
            target = Target(tmp_path / f"target-{number}")
            stop = threading.Event()
            done = passes.copy(
                source, target.descriptor, reads=False, stop=stop, moved=lambda _: None
            )
            assert passes.check(source, None, stop=stop) == done.written
            assert target.path.read_bytes() == path.read_bytes()
            outcomes[number] = done.written
            source.close()
            os.close(target.descriptor)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert outcomes == {n: crc32c(bytes([n]) * (BYTES + n)) for n in range(8)}
