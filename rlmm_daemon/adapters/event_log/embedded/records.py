"""The records of a batch that was walked, read by aiokafka's compiled parser.

`codec.batches` says what a batch may be; it takes six times as long. So it is asked only where the
other finds anything that this log never writes, and its error tells why; and for the little that
is read before the other is loaded, which takes longer than a start on a snapshot does otherwise.
"""

import importlib
import threading
from typing import Any, Final

import structlog

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.scan import FoundBatch

_log = structlog.get_logger(__name__)
#: Offset and value; None is a tombstone.
Pair = tuple[int, bytes | None]
#: What is read without the compiled parser, before it is worth loading.
READ_WITHOUT_BYTES: Final = 64 * 1024


class Compiled:
    """The compiled parser's module, loaded in a thread once there is much to read."""

    def __init__(self) -> None:
        self.module: Any = None
        self._read = 0
        self._loader: threading.Thread | None = None

    def parser(self, size: int) -> Any:
        """Return the parser for a batch of so many bytes; None as long as it is not loaded."""
        if self.module is None:
            self._read += size
            if self._loader is None and self._read > READ_WITHOUT_BYTES:
                self._loader = threading.Thread(target=self.load, name="compiled parser")
                self._loader.start()
            return None
        return self.module.DefaultRecordBatch

    def load(self) -> None:
        """Load it; a second call finds it loaded. Without a descriptor it is tried again later."""
        try:
            self.module = importlib.import_module("aiokafka.record.default_records")
        except (ImportError, OSError) as error:
            _log.warning("compiled_parser_not_loaded_yet", error=str(error))
            self._read, self._loader = 0, None


compiled: Final = Compiled()


def records_of(buffer: bytes, found: FoundBatch, *, position: int) -> list[Pair]:
    """Return a batch's records, ascending; `position` is that of `buffer` in its file.

    Raises:
        LogCorrupt: as `codec.batches.records_of`.
    """
    data = buffer[found.position : found.position + found.size]
    parser = compiled.parser(len(data))
    if parser is not None and (rows := _rows(parser(data), found)) is not None:
        return rows
    (judged,) = batches.split(data, position=position + found.position)
    return batches.records_of(judged)


def _rows(batch: Any, found: FoundBatch) -> list[Pair] | None:
    """Return the records if they are as this log writes them; None: `codec.batches` has to say."""
    if batch.is_control_batch or batch.compression_type:
        return None
    from aiokafka.errors import KafkaError  # noqa: PLC0415 - loaded with the parser

    try:
        rows = [(each.offset, each.value) for each in batch]
    except (KafkaError, ValueError, OverflowError, MemoryError):  # a length that none can hold
        return None
    if found.compacted:
        return rows if _ascend(rows, found) else None
    # One behind the other, as many as the header says: nothing can be missing or out of order.
    whole = len(rows) == found.next_offset - found.base_offset and all(
        offset == expected for expected, (offset, _) in enumerate(rows, found.base_offset)
    )
    return rows if whole else None


def _ascend(rows: list[Pair], found: FoundBatch) -> bool:
    behind = found.base_offset
    for offset, _ in rows:
        if offset < behind:
            return False
        behind = offset + 1
    return behind <= found.next_offset
