"""Every scenario file answers as it is written, and every cause has its scenario."""

import asyncio
import re
from pathlib import Path

import pytest

from rlmm_daemon.core.explain.explanation import NAMES
from rlmm_daemon.core.explain.facts import CopyPhase
from tests.scenario.clean_harness import in_clean_world
from tests.scenario.harness import in_world
from tests.scenario.quorum_harness import QuorumHarness
from tests.scenario.script import parse, rewritten

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))
#: Several daemons with cleaners, and no `given` facts.
CLEANER_FILES = sorted(HERE.glob("cleaner/*.txt"))
#: Replicas of a quorum on one wire: the core of consensus, with a shell that does what it says.
QUORUM_FILES = sorted(HERE.glob("quorum/*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_goes_as_written(path, request):
    text = path.read_text()
    answer = in_world(lambda harness: rewritten(parse(text), harness.run))
    compare(path, text, answer, request)


@pytest.mark.timeout(300)  # days of simulated time: tens of seconds of a processor that others use
@pytest.mark.parametrize("path", CLEANER_FILES, ids=lambda path: path.stem)
def test_the_cleaners_scenario_goes_as_written(path, request):
    text = path.read_text()
    answer = in_clean_world(lambda harness: rewritten(parse(text), harness.run))
    compare(path, text, answer, request)


@pytest.mark.parametrize("path", QUORUM_FILES, ids=lambda path: path.stem)
def test_the_quorums_scenario_goes_as_written(path, request):
    text = path.read_text()
    answer = asyncio.run(rewritten(parse(text), QuorumHarness().run))
    compare(path, text, answer, request)


def compare(path, text, answer, request):
    if request.config.getoption("--rewrite", default=False):
        path.write_text(answer)
    else:
        assert answer == text


#: Faults of real files, a real copier or a real bucket, and the tests that make them happen.
ELSEWHERE = {
    "unit/offline/test_stopped_daemon.py": {
        "offline",
        "offline_history_lost",
        "offline_log_corrupt",
        "offline_unbound",
    },
    "unit/daemon/copying/test_copy_explained.py": {
        *(f"copy_{phase.value.replace(' ', '_')}" for phase in CopyPhase),
        "copy_failed",
    },
    "unit/daemon/copying/test_roll_back.py": {"copy_unsettled"},
    "integration/test_bad_days.py": {"storage_trouble", "log_takes_no_writes"},
    "integration/test_two_daemons.py": {"other_daemon"},
    "integration/test_pause.py": {"copies_paused"},
    "integration/test_restored_state.py": {"presence_unread"},
    "unit/daemon/metadata/test_pauses.py": {"pause_forgotten", "pauses_unknown"},
    "fault_day/faults.py": {"storage_slow"},
    "unit/daemon/following/test_unusable_files.py": {"file_unusable"},
    "unit/daemon/metadata/test_previous_state.py": {
        "log_may_lose_events",
        "log_foreign",
        "quorum_takes_no_writes",
    },
}


def test_every_cause_and_every_notice_is_brought_about_by_a_fault():
    told = "\n".join(path.read_text() for path in (*FILES, *CLEANER_FILES))
    said = set(re.findall(r"^(?:\w+: |  also )(\w+)", told, re.MULTILINE))
    assert set(NAMES) - said - set().union(*ELSEWHERE.values()) == set()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_said_to_be_elsewhere_is_there(name):
    text = (HERE.parent / name).read_text()
    for cause in ELSEWHERE[name]:
        phase = cause.removeprefix("copy_").upper()
        assert f'"{cause}"' in text or f"  {cause}" in text or f"CopyPhase.{phase}" in text
