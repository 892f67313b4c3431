"""A cluster that does not answer calls no topic dead; no Spark is started."""

import socket
from pathlib import Path

import pyarrow as pa
import pytest

from rlmm_daemon.config import load
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.reconcile import liveness
from tests.reconcile.world import CLUSTER, DAEMON_OF_KAFKA, LOCAL, PARTITIONS


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
