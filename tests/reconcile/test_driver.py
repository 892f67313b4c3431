"""What the driver takes of frames of any size: no more than it needs, and never less."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlmm_daemon.config import parse
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Spark
from rlmm_daemon.reconcile.act import evidence, steps
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.schema import EVENTS, FINDINGS, OBJECTS, RowKind, ddl
from rlmm_daemon.reconcile.session import session
from tests.unit.reconcile.configured import LOCAL

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_an_unreadable_record_counts_behind_any_number_of_accepted_ones(spark) -> None:
    def unreadable(offset: int) -> dict[str, Any]:
        odd = {"metadata_partition": 3, "offset": offset, "kind": int(RowKind.UNREADABLE)}
        return {**dict.fromkeys(EVENTS.names), **odd, "detail": f"{offset:064} garbage"}

    many = evidence.UNREADABLE_MAX + 1
    rows = [tuple(unreadable(offset).values()) for offset in range(many)]
    events = spark.createDataFrame(rows, ddl(EVENTS))
    accepted = {(3, offset, f"{offset:064}") for offset in range(many - 1)}
    (found,) = evidence.unaccepted(spark, events, accepted)
    assert (found.metadata_partition, found.offset, found.reason) == (3, many - 1, "garbage")
    other = {(3, many - 1, "ab" * 32), (2, many - 1, found.sha256), (3, many, found.sha256)}
    assert len(evidence.unaccepted(spark, events, accepted | other)) == 1, "not this very record"
    assert evidence.unaccepted(spark, events, {*accepted, (3, many - 1, found.sha256)}) == []
    assert len(evidence.unaccepted(spark, events, set())) == evidence.UNREADABLE_MAX


def test_what_waits_or_was_restored_keeps_nothing_back_and_what_is_due_comes_first(spark) -> None:
    def entry(number: int, **more: Any) -> CondemnedObject:
        return CondemnedObject(
            key=f"k{number}",
            size=1,
            etag=f"e{number}",
            modified_ms=1_000 * number,
            kind="orphan_object",
            **more,
        )

    def finding(one: CondemnedObject, *, condemned: bool = True) -> tuple[Any, ...]:
        named = {"key": one.key, "bytes": 1, "etag": one.etag, "modified_ms": one.modified_ms}
        told = {"kind": one.kind, "upload_id": one.upload_id, "condemned": condemned}
        return tuple({**dict.fromkeys(FINDINGS.names), **named, **told}.values())

    waiting, fresh = [entry(n) for n in range(50)], [entry(n) for n in range(50, 55)]
    due, upload = entry(90), entry(60, upload_id="u")
    every = [*waiting, *fresh, due, upload]
    rows = [*map(finding, every), finding(entry(1, upload_id="v"), condemned=False)]
    found = spark.createDataFrame(rows, ddl(FINDINGS))
    known = {one.identity: False for one in (*waiting, entry(60))} | {due.identity: True}
    assert steps.oldest(found, known, (), 3) == ([due, *fresh[:2]], 4)
    assert steps.oldest(found, known, (), 99) == ([due, *fresh, upload], 0)
    rewritten = [fresh[0].name, upload.name, ("k90", "u")]
    assert steps.oldest(found, known, rewritten, 99) == ([due, *fresh[1:]], 0)
    assert steps.oldest(found, {}, (), 1) == (waiting[:1], 56)


def test_what_a_manifest_names_is_listed_as_it_is_now(spark) -> None:
    def entry(key: str, **more: Any) -> CondemnedObject:
        told = {"size": 1, "etag": "e", "modified_ms": 7_001, "kind": "orphan_object", **more}
        return CondemnedObject(key=key, **told)

    there, upload = entry("there"), entry("there", etag="", upload_id="u")
    others = [entry("gone"), entry("tag", etag="f"), entry("time", modified_ms=8_000),
              entry("old"), entry("there", upload_id="v")]  # fmt: skip
    rows = [
        ("there", 1, 7_999, "e", None, False),
        ("there", 0, 7_000, None, "u", False),
        ("tag", 1, 7_001, "e", None, False),
        ("time", 1, 7_001, "e", None, False),
        ("old", 1, 7_001, "e", None, True),
        ("stranger", 1, 7_001, "e", None, False),
    ]
    objects = spark.createDataFrame(rows, ddl(OBJECTS))
    made = Manifest(run="r", fence=1, created_ms=0, entries=(there, *others))
    second = Manifest(run="r", fence=1, created_ms=0, entries=(upload, there))
    now = {there.identity, ("tag", "e", 7, None), ("time", "e", 7, None)}
    assert steps.listed(objects, {"a": made}) == now
    assert steps.listed(objects, {"a": made, "b": second}) == {*now, upload.identity}
    assert (
        steps.listed(objects, {"none": Manifest(run="r", fence=1, created_ms=0, entries=())})
        == set()
    )


def test_no_setting_of_a_cluster_lets_a_file_of_events_be_passed_over(
    spark, tmp_path: Path
) -> None:
    for name in ("Missing", "Corrupt"):
        spark.conf.set(f"spark.sql.files.ignore{name}Files", "true")
    config = ReconcileConfig(output=Output(directory=str(tmp_path)))
    with session(Spark()) as found:
        run = Run(found, config, parse(LOCAL.format(home=tmp_path)),
                  execute=False, now_ms=0, progress=print)  # fmt: skip
        home = run.directory / "work" / "events"
        home.mkdir(parents=True)
        for name in ("a", "b"):
            pq.write_table(pa.table({"topic": [name]}), home / f"{name}.parquet")

        def topics() -> int:
            return len(run._frame("events", EVENTS).select("topic").take(9))

        assert topics() == 2
        (home / "a.parquet").write_bytes(b"damaged")
        with pytest.raises(Exception, match=r"a\.parquet"):
            topics()
        (home / "a.parquet").unlink()
        with pytest.raises(Exception, match=r"a\.parquet"):
            topics()
