"""`rlmm export --format parquet`: what other engines read is what the daemon knows."""

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.offline import export_parquet
from tests.support import stocked_daemon


def test_a_parquet_export_holds_every_segment(tmp_path: Path) -> None:
    stocked = stocked_daemon.make(tmp_path)
    file = tmp_path / "segments.parquet"
    with stocked.daemon:
        stocked.stock()
        words = ("export", "--format", "parquet", "--output", str(file))
        assert stocked.rlmm(*words).stdout == f"6 segments in {file}\n"
        told = json.loads(stocked.rlmm(*words, "--json").stdout)
        listed = [each for number in (0, 1) for each in stocked.listed(number).values()]
    assert told == {"path": str(file), "segments": 6}
    table = pq.read_table(file)
    assert table.schema.equals(export_parquet.SCHEMA)
    rows = {row["segment_id"]: row for row in table.to_pylist()}
    assert rows.keys() == {uuid_text(each.segment_id) for each in listed}
    for each in listed:
        row = rows[uuid_text(each.segment_id)]
        assert (row["start_offset"], row["log_size"]) == (
            each.start_offset,
            each.segment_size_bytes,
        )
        assert dict(zip(row["epochs"], row["epoch_offsets"], strict=True)) == dict(
            each.segment_leader_epochs
        )
    total = duckdb.connect().execute(f"SELECT count(*), sum(log_size) FROM '{file}'").fetchone()
    assert total == (6, sum(each.segment_size_bytes for each in listed))


def test_an_export_that_is_cut_leaves_no_file(tmp_path: Path) -> None:
    def cut():
        yield from ()
        raise ConnectionError

    file = tmp_path / "segments.parquet"
    try:
        export_parquet.write(cut(), file)
    except ConnectionError:
        assert [*tmp_path.iterdir()] == []
    else:
        raise AssertionError("it was cut")
