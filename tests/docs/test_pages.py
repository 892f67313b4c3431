"""Tables of docs/ say what the code says; what a stranger would look up there is complete."""

import re

import pytest

from rlmm_daemon.core.explain.runbook import RUNBOOK
from tests.docs import metrics, pages, runbook
from tests.docs.alarms import ALARMS
from tests.support import kafka_metrics

STALE = "the code says otherwise now: make docs-tables writes this page's tables anew"


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_pages_tables_are_what_the_code_says(page, pytestconfig):
    if pytestconfig.getoption("--rewrite"):
        pages.write(page)
    assert (pages.DOCS / page).read_text() == pages.current(page), STALE


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_has_each_of_its_tables_once(page):
    assert sorted(pages.tables(page)) == sorted(pages.PAGES[page])


def test_no_list_of_commands_breaks_off():
    lines = (pages.DOCS / "cli.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("  ") and line.endswith("...")] == []


def test_a_table_that_is_stale_is_noticed(monkeypatch):
    (name,) = pages.PAGES["metrics.md"]
    monkeypatch.setitem(pages.PAGES["metrics.md"], name, lambda: "| another | table |")
    assert (pages.DOCS / "metrics.md").read_text() != pages.current("metrics.md")


def test_every_metric_that_is_served_has_a_row():
    assert metrics.names() == metrics.registered()


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_is_about_a_metric_that_there_is(name):
    condition, advice = ALARMS[name]
    assert name in metrics.names()
    assert name in condition
    assert advice


def test_each_of_kafkas_metrics_has_a_row_beside_ours_and_no_other():
    page = (pages.DOCS / "metrics.md").read_text()
    told = kafka_metrics.told(page)
    assert len(told) > 20
    assert sorted(told) == sorted(kafka_metrics.kept())


def test_kafkas_metrics_are_named_beside_ones_that_there_are():
    table = kafka_metrics.table((pages.DOCS / "metrics.md").read_text())
    named = set(re.findall(r"`(rlmm_\w+)", table))
    assert len(named) > 5
    assert named <= metrics.names()


def test_the_runbook_has_a_section_for_each_failure_and_no_other():
    assert set(RUNBOOK) == runbook.failed()


@pytest.mark.parametrize("name", RUNBOOK)
def test_a_section_of_the_runbook_says_what_rlmm_explain_says(name):
    section = runbook.sections(pages.DOCS / "runbook.md")[name]
    told = runbook.example(name)
    assert told.sentence in section
    for each in told.evidence:
        assert each in section
    for head in ("What it means", "What is safe", "Evidence to look at", "Next command"):
        assert f"**{head}.**" in section
    assert "**What ends it.**" in section
