"""Durable batches of one partition, read from its files slice by slice."""

from rlmm_daemon.adapters.event_log.embedded import files
from rlmm_daemon.adapters.event_log.embedded.journal import Journal
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.adapters.event_log.embedded.records import records_of
from rlmm_daemon.adapters.event_log.embedded.recovery import corrupt
from rlmm_daemon.codec import scan
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.ports.disk import DiskFile  # noqa: TC001  # as every other module imports it
from rlmm_daemon.ports.event_log import LogBatch, LogRange, ranges_joined, ranges_without


class Reader:
    """One follower's place in the files. Reads large chunks, decodes small slices of them."""

    def __init__(self, context: Context, journal: Journal) -> None:
        self._disk = context.disk
        self._options = context.options
        self._journal = journal
        self._file: DiskFile | None = None
        self._base = -1
        #: Compactions of the journal when the file was opened: another one may have its name now.
        self._count = 0
        #: Where the next batch stands in the file, and its offset.
        self._position = 0
        self._offset = 0
        #: What was read of the file, and where the next batch stands there.
        self._buffer = b""
        self._at = 0

    async def read(self, offset: int) -> LogBatch:
        """Return the next records from `offset` on, which must be below the stable end.

        Raises:
            LogCorrupt: an invalid batch that a second read did not cure.
            OSError: not now.
        """
        await self._seek(offset)
        walked = self._walk()
        if not walked.found:
            await self._fetch(walked.claimed)
            walked = self._walk()
        if not walked.found:
            self._drop_buffer()  # a second read, in case the first one was what was damaged
            await self._fetch(walked.claimed)
            walked = self._walk()
        if not walked.found:
            reason = walked.reason or "no batch stands where one must be"
            raise corrupt(self.path, self._position, reason)
        return self._take(walked, offset)

    @property
    def is_behind(self) -> bool:
        """Whether the files were replaced since the one was opened that it reads."""
        return self._count != self._journal.compaction.count

    async def close(self) -> None:
        """Give the descriptor back."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    @property
    def path(self) -> str:
        """The file that was read last."""
        return files.segment_path(self._journal.directory, self._base)

    async def _seek(self, offset: int) -> None:
        base, count = self._journal.base_of(offset), self._journal.compaction.count
        known = (base, count) == (self._base, self._count)
        if self._file is None or not known or offset < self._offset:
            await self.close()
            self._count = count
            self._base, self._position, self._offset = base, 0, base
            self._drop_buffer()
            self._file = await self._disk.open(self.path)
        while self._offset < offset:
            begin = self._at
            at, self._offset = scan.skip_to(self._buffer, self._offset, offset, begin=begin)
            self._pass(at)
            if at == begin and (self._offset >= offset or not await self._fetch(0)):
                return

    def _walk(self) -> scan.Walk:
        return scan.walk(
            self._buffer,
            self._offset,
            begin=self._at,
            bytes_max=self._options.slice_bytes,
        )

    async def _fetch(self, claimed: int) -> bool:
        """Read the chunk at the position; return whether it has more than the buffer had."""
        assert self._file is not None
        end = await self._end()
        length = min(max(self._options.read_bytes, claimed), end - self._position)
        before = len(self._buffer) - self._at
        self._buffer = await self._file.pread(self._position, length) if length > 0 else b""
        self._at = 0
        return len(self._buffer) > before

    async def _end(self) -> int:
        """Return how far the file may be read: what no sync has covered is not shown."""
        assert self._file is not None
        if self._base == self._journal.newest:
            return self._journal.position
        return await self._file.size()

    def _pass(self, at: int) -> None:
        """Go on to where the next batch stands in the buffer, of which nothing is copied."""
        self._position += at - self._at
        self._at = at

    def _drop_buffer(self) -> None:
        self._buffer, self._at = b"", 0

    def _take(self, walked: scan.Walk, offset: int) -> LogBatch:
        records: list[tuple[int, bytes | None]] = []
        unvouched: list[LogRange] = []
        dropped_to = 0
        try:
            for found in walked.found:
                rows = records_of(self._buffer, found, position=self._position - self._at)
                if found.compacted:
                    dropped_to = found.next_offset
                elif len(rows) != found.next_offset - found.base_offset:  # a repair left it
                    begin = max(found.base_offset, offset)
                    unvouched += ranges_without(begin, found.next_offset, (at for at, _ in rows))
                records += rows
        except LogCorrupt as error:
            raise corrupt(self.path, error.fields["position"], error.message) from error
        if self._offset < offset:  # the first batch began before what is wanted
            records = [record for record in records if record[0] >= offset]
        self._pass(walked.stop)
        self._offset = walked.next_offset
        return LogBatch(
            next_offset=walked.next_offset,
            leader_epoch=self._journal.epochs.epoch_of(walked.found[-1].next_offset - 1),
            records=records,
            range=self._journal.range,
            unvouched=ranges_joined(unvouched),
            dropped_to=dropped_to,
        )
