"""The records of a batch that was walked, read by aiokafka's compiled parser.

`codec.batches` says what a batch may be; it takes six times as long. So it is asked only where the
other finds anything that this log never writes, and its error tells why.
"""

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from rlmm_daemon.adapters.event_log.embedded.scan import Found
from rlmm_daemon.codec import batches

#: Offset and value; None is a tombstone.
Pair = tuple[int, bytes | None]


def records_of(buffer: bytes, found: Found, *, position: int) -> list[Pair]:
    """Return a batch's records, ascending; `position` is that of `buffer` in its file.

    Raises:
        LogCorrupt: as `codec.batches.records_of`.
    """
    data = buffer[found.position : found.position + found.size]
    batch = DefaultRecordBatch(data)
    if not batch.is_control_batch and not batch.compression_type:
        try:
            rows = [(each.offset, each.value) for each in batch]
        except (KafkaError, ValueError):
            rows = []
        # One behind the other, as many as the header says: nothing can be missing or out of order.
        if len(rows) == found.next_offset - found.base_offset and all(
            offset == expected for expected, (offset, _) in enumerate(rows, found.base_offset)
        ):
            return rows
    (judged,) = batches.split(data, position=position + found.position)
    return batches.records_of(judged)
