"""A cluster that does not answer calls no topic dead; no Spark is started."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from rlmm_daemon.config import load, parse
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.reconcile.read import liveness, log_reading
from rlmm_daemon.wiring import adapters
from tests.reconcile.world import CLUSTER, DAEMON_OF_KAFKA, LOCAL, PARTITIONS
from tests.unit.reconcile.configured import LOCAL as LOCAL_DAEMON


def test_a_cluster_that_does_not_answer_is_an_error_and_no_topic_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ASK_SECONDS", 2.0)
    with socket.socket() as nobody:  # bound, and not listening: whoever asks is refused
        nobody.bind(("127.0.0.1", 0))
        file = tmp_path / "rlmm.toml"
        text = DAEMON_OF_KAFKA.format(
            cluster=CLUSTER,
            home=tmp_path,
            count=PARTITIONS,
            bootstrap=f"127.0.0.1:{nobody.getsockname()[1]}",
            storage=LOCAL.format(home=tmp_path),
        )
        file.write_text(text)
        ask = liveness.Unknown(load(file))
        ids = pa.RecordBatch.from_pydict({"topic_id": ["t" * 21 + "A"]}, schema=liveness.UNKNOWN)
        with pytest.raises((ExceptionGroup, RlmmError, TimeoutError)):
            list(ask([ids]))
        assert [row for batch in ask([ids.slice(0, 0)]) for row in batch.to_pylist()] == []


@pytest.mark.parametrize(("silent", "whole"), [(2, True), (10**9, False)])
def test_a_broker_that_does_not_answer_for_a_moment_ends_no_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int, *, whole: bool
) -> None:
    """One that died counts as live until its session ends."""

    class Answering:
        left = silent

        async def topic_ids_unknown(self, ids: frozenset[TopicId]) -> frozenset[TopicId]:
            if self.left > 0:
                self.left -= 1
                raise StorageUnavailable("broker 2 does not answer")
            return ids

    @asynccontextmanager
    async def opened(_config: object) -> AsyncIterator[None]:
        yield None

    cluster = Answering()
    monkeypatch.setattr(log_reading, "opened", opened)
    monkeypatch.setattr(adapters, "cluster_of", lambda *_: cluster)
    monkeypatch.setattr(log_reading, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(liveness, "PATIENCE_SECONDS", 60.0 if whole else 0.1)
    ask = liveness.Unknown(parse(LOCAL_DAEMON.format(home=tmp_path)))
    ids = pa.RecordBatch.from_pydict({"topic_id": ["t" * 21 + "A"]}, schema=liveness.UNKNOWN)
    if whole:
        assert [row for batch in ask([ids]) for row in batch.to_pylist()] == ids.to_pylist()
    else:
        with pytest.raises(StorageUnavailable, match="broker 2"):
            list(ask([ids]))
