"""What a run tells: foreign strings escaped, numbers right, nothing loaded from anywhere."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.config.reconcile import Output
from rlmm_daemon.core.disposal.findings import Finding
from rlmm_daemon.reconcile.report import outputs
from rlmm_daemon.reconcile.report.summary import Example, Night

NASTY = "<script>alert(1)</script>[red]\x1b[31m\nsecond"


def night(**changes: object) -> Night:
    made = Night(run="20261122T000000000Z", cluster=NASTY, listed_at_ms=1, execute=False)
    made.findings = {"orphan_object": (2, 3_000), "missing_object": (1, 500)}
    made.offenders = [("orphan_object", NASTY, 2, 3_000, 90_000_000)]
    made.objects, made.object_bytes, made.events = 10, 2_500_000_000, 12
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Tags(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_no_foreign_string_becomes_markup() -> None:
    text = outputs.page(night(refused=[NASTY]), [], Output())
    tags = Tags()
    tags.feed(text)
    assert "script" not in {tag for tag, _ in tags.seen}
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "\\nsecond" in text


def test_the_page_needs_no_network() -> None:
    text = outputs.page(night(), [], Output())
    tags = Tags()
    tags.feed(text)
    assert not [attrs for _, attrs in tags.seen if attrs.keys() & {"src", "href"}]
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?://", text)


def test_the_gravest_comes_first() -> None:
    assert [kind for _, kind, *_ in outputs.rows(night())] == ["missing_object", "orphan_object"]


def test_a_price_becomes_a_cost() -> None:
    text = outputs.page(night(condemned_bytes=2_000_000_000), [], Output(price_per_gb_month=0.02))
    assert "about 0.04 USD a month" in text
    assert "a month" not in outputs.page(night(), [], Output())


def test_each_topic_is_told_what_it_costs_and_what_is_not_there_costs_nothing() -> None:
    worst = [(kind, "orders", 2, 3_000_000_000, 90_000_000) for kind in Finding]
    found = {kind.value: (1, 5_000_000_000) for kind in Finding}
    shown = night(offenders=worst, findings=found)
    text = outputs.page(shown, [], Output(price_per_gb_month=0.02, currency="EUR"))
    here = len(Finding) - len(("missing_object", "partial_segment", "offset_gap"))
    assert text.count("about 0.06 EUR a month") == here, "by topic"
    assert text.count("about 0.10 EUR a month") == here, "by kind"
    assert "a month" not in outputs.page(shown, [], Output())


def test_the_page_is_light_or_dark_as_its_reader_likes_it() -> None:
    text = outputs.page(night(), [], Output())
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert "@media (prefers-color-scheme: dark)" in text
    colours = [set(re.findall(r"--(\w+): #", each)) for each in (light, dark)]
    assert colours[0] == colours[1] == {*re.findall(r"var\(--(\w+)\)", text)}


def test_every_kind_has_a_metric_even_when_nothing_was_found() -> None:
    text = outputs.metrics(night(findings={}))
    for kind in Finding:
        assert f'rlmm_reconcile_findings{{kind="{kind.value}"}} 0' in text


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1_500, "1.5 kB"), (2 * 10**9, "2.0 GB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert outputs.human(size) == text


def test_a_run_is_written_trends_follow_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    output = Output(directory=str(tmp_path), textfile=str(tmp_path / "r.prom"), runs_kept=2)
    for day in range(4):
        made = night(run=f"2026112{day}T000000000Z")
        directory = tmp_path / made.run
        directory.mkdir()
        (directory / "findings.parquet").mkdir()
        if day == 1:
            (directory / "audit.jsonl").write_text('{"deleted": "k"}\n')
        outputs.write(made, directory, output)
    left = sorted(
        each.name for each in tmp_path.iterdir() if each.is_dir() and not each.is_symlink()
    )
    told = ["20261121T000000000Z"]
    assert left == [*told, "20261122T000000000Z", "20261123T000000000Z"]
    assert [each.name for each in (tmp_path / told[0]).iterdir()] == ["audit.jsonl"]
    page = (tmp_path / "latest" / "report.html").read_text()
    assert "polyline" in page
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert summary["findings"]["orphan_object"] == [2, 3_000]
    assert "rlmm_reconcile_objects 10" in (tmp_path / "r.prom").read_text()


@pytest.mark.parametrize(
    "summary",
    ["", "[]", "null", "{}", '{"run": 1, "findings": {}}', '{"run": "r", "findings": {"k": 3}}'],
)
def test_an_odd_earlier_summary_is_passed_over(tmp_path: Path, summary: str) -> None:
    for name, text in (
        ("20261120T000000000Z", '{"run": "good", "findings": {"overlap": [1, 7]}, "more": 1}'),
        ("20261121T000000000Z", summary),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / outputs.SUMMARY).write_text(text)
    made = night()
    (tmp_path / made.run).mkdir()
    outputs.write(made, tmp_path / made.run, Output(directory=str(tmp_path)))
    assert "good: 7 B" in (tmp_path / "latest" / outputs.PAGE).read_text()


def test_what_killed_runs_left_is_forgotten_with_the_runs_of_their_time(tmp_path: Path) -> None:
    for name in ("20261101T000000000Z", "20261102T000000000Z", "20261123T000000000Z", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.jsonl").touch()
    (tmp_path / "20261102T000000000Z" / "work").mkdir()  # it goes on, since weeks
    made = night()
    (tmp_path / made.run).mkdir()
    outputs.write(made, tmp_path / made.run, Output(directory=str(tmp_path), runs_kept=1))
    left = {each.name for each in tmp_path.iterdir()} - {"latest"}
    assert left == {"20261102T000000000Z", made.run, "20261123T000000000Z", "notes"}


def test_a_run_that_was_broken_off_says_so_everywhere() -> None:
    made = night(broken_off=f"the storage went {NASTY}", deleted=3)
    page = outputs.page(made, [], Output())
    assert "broken off" in page
    assert "the storage went &lt;script&gt;" in page
    assert "rlmm_reconcile_broken_off 1" in outputs.metrics(made)
    assert "rlmm_reconcile_deleted_objects 3" in outputs.metrics(made)
    assert "rlmm_reconcile_broken_off 0" in outputs.metrics(night())


def test_what_could_not_be_looked_for_is_on_the_page() -> None:
    text = outputs.page(night(notes=[f"old versions were not looked for {NASTY}"]), [], Output())
    assert "old versions were not looked for &lt;script&gt;" in text


def test_a_textfile_that_can_not_be_written_spoils_no_report(tmp_path: Path) -> None:
    """Of a unit that may write below its own directory only, for one."""
    absent = str(tmp_path / "nowhere" / "r.prom")
    output = Output(directory=str(tmp_path), textfile=absent, runs_kept=2)
    runs = [night(run=f"2026112{day}T000000000Z") for day in range(3)]
    for made in runs:
        (tmp_path / made.run).mkdir()
        outputs.write(made, tmp_path / made.run, output)
    assert (tmp_path / "latest").resolve().name == runs[-1].run
    assert len([*tmp_path.glob("2026*")]) == 2, "and the oldest is forgotten"
    (note,) = runs[-1].notes
    assert absent in note


def example(**changes: object) -> Example:
    made = Example(
        kind="missing_object", where="orders-3", segment_id="c2VnbWVudA", key="orders/1.log",
        bytes=7, age_ms=90_000_000, facts="recorded=7",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_the_page_names_segments_and_keys_the_gravest_first() -> None:
    leaked = example(kind="orphan_object", key=NASTY, where=NASTY, facts=NASTY, segment_id=NASTY)
    text = outputs.page(night(examples=[leaked, example()]), [], Output())
    assert "c2VnbWVudA" in text
    assert text.index("orders/1.log") < text.index("&lt;script&gt;alert(1)", text.index("Segments"))
    tags = Tags()
    tags.feed(text)
    assert "script" not in {tag for tag, _ in tags.seen}


def test_what_is_missing_is_not_counted_with_what_is_leaked() -> None:
    text = outputs.page(night(), [], Output())
    cards = dict(re.findall(r'card"><span>([^<]*)</span><b>([^<]*)</b>', text))
    assert (cards["Missing or damaged"], cards["Stored for nobody"]) == ("1", "2")
    assert "3.5 kB" not in text
    earlier = [{"run": "before", "findings": {"orphan_object": (1, 900), "missing_object": (1, 5)}}]
    trend = outputs.page(night(), earlier, Output())
    assert "before: 900 B" in trend
    assert "before: 5 B missing" in trend


def test_the_next_deletion_and_what_waits_for_a_word_are_told() -> None:
    made = night(next_deletion_ms=1_795_651_200_000, needs_approval={"r-001.json": (2, 5_000)})
    text = outputs.page(made, [], Output())
    assert "From 2026-11-26 00:00 UTC on a run with --execute deletes" in text
    assert "2 objects (5.0 kB) of r-001.json" in text
    assert "rlmm reconcile approve r-001.json" in text
    told = outputs.metrics(made)
    assert "rlmm_reconcile_next_deletion_timestamp_seconds 1795651200.0" in told
    assert "rlmm_reconcile_needs_approval_objects 2" in told
    due = night(next_deletion_ms=1)
    assert outputs.ahead(due) == ["Since 1970-01-01 00:00 UTC on a run with --execute deletes."]
    assert outputs.ahead(night()) == []
