"""The Python DataSources of Spark: objects by slices of the key space, events by slices of the log.

Their options carry the daemon's configuration as JSON, which names files of secrets and never holds
one. Both yield Arrow batches, at half the price of rows. Spark starts a fresh Python to plan each
read: what only a task needs is imported by the task.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rlmm_daemon.reconcile.schema import EVENTS, OBJECTS, ddl

if TYPE_CHECKING:
    from rlmm_daemon.config import Config
    from rlmm_daemon.reconcile.read.listing import Slice
    from rlmm_daemon.reconcile.read.log_reading import LogSlice

OBJECTS_SOURCE: Final = "rlmm-objects"
EVENTS_SOURCE: Final = "rlmm-events"
TASKS_MAX: Final = 2_000
_CONFIG: Final = "config"
_SLICES: Final = "slices"
_PAGES: Final = "pages_per_second_max"


def register(spark: Any) -> None:
    """Make both sources known to a session."""
    spark.dataSource.register(ObjectsSource)
    spark.dataSource.register(EventsSource)


def objects(spark: Any, config: "Config", slices: "list[Slice]", pages_per_second_max: int) -> Any:
    """Return the objects of these slices as a frame, listed each time it is read."""
    return (
        spark.read.format(OBJECTS_SOURCE)
        .option(_CONFIG, msgspec.json.encode(config).decode())
        .option(_SLICES, msgspec.json.encode(slices).decode())
        .option(_PAGES, str(pages_per_second_max))
        .load()
    )


def events(spark: Any, config: "Config", slices: "list[LogSlice]") -> Any:
    """Return the records of these slices as a frame, read each time it is read."""
    return (
        spark.read.format(EVENTS_SOURCE)
        .option(_CONFIG, msgspec.json.encode(config).decode())
        .option(_SLICES, msgspec.json.encode(slices).decode())
        .load()
    )


@dataclass
class _Part(InputPartition):  # type: ignore[misc]  # pyspark is not typed
    """Some slices, as JSON: what Spark hands to a task."""

    slices: bytes


class ObjectsSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    """What lies in the storage."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return OBJECTS_SOURCE

    def schema(self) -> str:
        """Return `schema.OBJECTS`."""
        return ddl(OBJECTS)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return what reads the slices."""
        del schema
        return _ObjectsReader(self.options)


class _ObjectsReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed
    def __init__(self, options: Any) -> None:
        self._config: str = options[_CONFIG]
        self._slices: str = options[_SLICES]
        self._pages = int(options[_PAGES])

    def partitions(self) -> list[InputPartition]:
        return _packed(self._slices)

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        from rlmm_daemon.config import Config  # noqa: PLC0415 - only a task needs it
        from rlmm_daemon.reconcile.read import listing  # noqa: PLC0415 - only a task needs it

        config = msgspec.json.decode(self._config, type=Config)
        for part in msgspec.json.decode(partition.slices, type=list[listing.Slice]):
            yield from listing.listed(config, part, self._pages)


class EventsSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    """What the log says."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return EVENTS_SOURCE

    def schema(self) -> str:
        """Return `schema.EVENTS`."""
        return ddl(EVENTS)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return what reads the slices."""
        del schema
        return _EventsReader(self.options)


class _EventsReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed
    def __init__(self, options: Any) -> None:
        self._config: str = options[_CONFIG]
        self._slices: str = options[_SLICES]

    def partitions(self) -> list[InputPartition]:
        return _packed(self._slices)

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        from rlmm_daemon.config import Config  # noqa: PLC0415 - only a task needs it
        from rlmm_daemon.reconcile.read import log_reading  # noqa: PLC0415 - only a task needs it

        config = msgspec.json.decode(self._config, type=Config)
        for part in msgspec.json.decode(partition.slices, type=list[log_reading.LogSlice]):
            yield from log_reading.read(config, part)


def _packed(slices: str) -> list[InputPartition]:
    """Return at most `TASKS_MAX` lists of slices: a bucket may have a hundred thousand prefixes."""
    every = msgspec.json.decode(slices)
    packs = [every[first::TASKS_MAX] for first in range(min(TASKS_MAX, len(every)))]
    return [_Part(msgspec.json.encode(pack)) for pack in packs] or [_Part(b"[]")]
