"""Orders of steps that keep false alarms and refusals away; no Spark is started."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.ports.event_log import LogIdentity, LogRange
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act.last_look import LastLook
from rlmm_daemon.reconcile.errors import Incomplete, Refused
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import late_events, log_reading, sources
from rlmm_daemon.reconcile.read.log_reading import LogView
from tests.reconcile.world import World

NOW = 1_800_000_000_000


class Frame:
    """Says when it is computed, which is when it is written."""

    def __init__(self, told: list[str]) -> None:
        self._told = told
        self.write = self

    def __getattr__(self, _step: str) -> Any:
        return lambda *_args: self

    def parquet(self, path: str) -> None:
        self._told.append(path.rpartition("/")[2])


class Stop(Exception):
    """Ends a run where a test has seen enough."""


def test_the_storage_is_listed_before_the_log_is_asked_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round all that was copied between the two would have no event."""
    told: list[str] = []

    def tells(name: str, step: Any) -> Any:
        def telling(*given: Any, **more: Any) -> Any:
            told.append(name)
            return step(*given, **more)

        return telling

    def stop(*_: object) -> None:
        raise Stop

    world = World(tmp_path, NOW)
    world.write_log()
    config = ReconcileConfig(output=Output(directory=str(tmp_path / "out")))
    daemon = load(world.write_local())
    run = Run(None, config, daemon, execute=False, now_ms=NOW, progress=lambda _stage: None)
    presences = tells("daemons", control.read_presences)
    monkeypatch.setattr(control, "read_presences", presences)
    monkeypatch.setattr(sources, "objects", lambda *_: Frame(told))
    monkeypatch.setattr(run, "_list_uploads", tells("uploads", nothing))
    monkeypatch.setattr(log_reading, "view", tells("ends", log_reading.view))
    monkeypatch.setattr(sources, "events", tells("log", stop))
    with pytest.raises(Stop):
        run.whole()
    assert told == ["daemons", "objects", "uploads", "ends", "log"]


async def nothing(_roots: list[str]) -> None:
    pass


def test_objects_are_asked_for_before_the_logs_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round a segment that is deleted between the two looks as if it were lost.

    Before them as well: of what the log has named since hours ago no object is asked for.
    """
    world = World(tmp_path, NOW)
    world.write_log()
    config = ReconcileConfig(output=Output(directory=str(tmp_path / "out")))
    daemon = load(world.write_local())
    run = Run(None, config, daemon, execute=False, now_ms=NOW, progress=lambda _stage: None)
    (run.directory / "work").mkdir(parents=True)
    told: list[str] = []

    def tail(
        _config: object, ends: dict[int, int], _now: object
    ) -> tuple[set[str], dict[int, int]]:
        assert ends == {0: len(told)}, "from where it came to"
        told.append("tail")
        return {f"{len(told)}"}, {0: len(told) + 1}

    monkeypatch.setattr(run, "_frame", lambda *_: Frame(told))
    monkeypatch.setattr(late_events, "tail", tail)
    seen = replace(log_reading.view(daemon), ranges={0: LogRange(start=0, end=0)})
    run._confirm(seen)
    assert told == ["tail", "confirmed", "tail"]
    for name, touched in (("moved", ["1"]), ("touched", ["1", "3"])):
        rows = pq.read_table(run.directory / "work" / name).to_pylist()
        assert [row["segment_id"] for row in rows] == touched
    identity = LogIdentity(cluster_id="c", topic_id=TopicId(bytes(16)), partition_count=1)
    with pytest.raises(Incomplete, match="made anew"):  # whatever it says, it is another's
        run._confirm(LogView(identity=identity, ranges=seen.ranges))


def test_what_daemons_have_read_is_looked_at_before_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round every event that comes between the two would refuse a night."""
    world = World(tmp_path, NOW)
    world.live()
    world.write_log()
    daemon = load(world.write_local())
    view = log_reading.view

    def moved(config: Any) -> LogView:
        seen = view(config)
        world.write_control("daemons/1.json", marker.encode(world.presence(ahead=1)))
        return seen

    monkeypatch.setattr(log_reading, "view", moved)

    async def look() -> None:
        async with control.opened(daemon, reads_only=True) as storage:
            await LastLook(daemon, storage, started_ms=NOW)()

    asyncio.run(look())
    with pytest.raises(Refused, match="the log ends at"):
        asyncio.run(look())
