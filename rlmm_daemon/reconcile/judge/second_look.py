"""A second look at objects that a listing calls missing, before anybody is told.

The log's tail is read, for hours may lie behind the log; of segments that it does not name each
object is asked for itself, on the executors; then the tail is read once more. Its end is younger
than the answers: a segment that was rightly deleted meanwhile has DELETE_SEGMENT_STARTED there,
since that is applied before any object goes. So what is left is really missing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.config import Config
from rlmm_daemon.core.disposal.findings import Finding
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read.listing import look_up


class Confirm:
    """Drops candidates whose object turns out to be there, and whole."""

    def __init__(self, config: Config) -> None:
        #: As bytes: what is sent to the tasks holds names of secret files, never a secret.
        self._config = msgspec.json.encode(config)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the findings that stand, as `mapInArrow` wants it."""
        config = msgspec.json.decode(self._config, type=Config)
        for batch in batches:
            rows = batch.select(["kind", "key", "recorded_bytes"]).to_pylist()
            stands = [_stands(config, row) for row in rows]
            yield batch.filter(pa.array(stands, type=pa.bool_()))


def _stands(config: Config, row: Mapping[str, Any]) -> bool:
    if row["key"] is None:
        # Recorded without a place: nothing to ask for, the listing of every layout is the answer,
        # as long as it is a listing of this storage.
        if look_up(config, MARKER_KEY) is None:
            raise Incomplete(f"there is no {MARKER_KEY} any more: the storage is gone")
        return True
    found = look_up(config, row["key"])
    match Finding(row["kind"]):
        case Finding.SIZE_MISMATCH:
            return found is not None and found.size != row["recorded_bytes"]
        case Finding.MISSING_OBJECT | Finding.PARTIAL_SEGMENT:
            return found is None
        case _:
            return found is not None
