"""Explanation of facts for a person: verdict, cause, evidence, and the command to type next.

One table holds every cause, in the order in which they are tried: the first that applies is the
answer, and every *notice* that applies is said besides. The tables are asserted to cover each state
there is, so that a state without a row is an import error.
"""

import enum
from collections.abc import Iterable
from itertools import chain
from typing import Final

from rlmm_daemon.core import phrases
from rlmm_daemon.core.disposal.observation import UnknownClock
from rlmm_daemon.core.disposal.steps import HOLDS, CopyStep, DeleteStep
from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.explain.facts import CopyPhase, Facts
from rlmm_daemon.core.explain.notices import NOTICES
from rlmm_daemon.core.explain.runbook import RUNBOOK
from rlmm_daemon.core.explain.verdict import Explanation, Notice, Verdict
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

_STATES: Final = frozenset[enum.Enum](
    chain(
        PartitionState,
        FailureReason,
        SegmentState,
        CopyPhase,
        PartitionDeleteState,
        HOLDS,
        CopyStep,
        DeleteStep,
        UnknownClock,
    )
)
_COVERED: Final = frozenset[enum.Enum]().union(
    *(cause.covers for cause in CAUSES), *(notice.covers for notice in NOTICES)
)
assert _COVERED >= _STATES, f"states without a row: {_STATES - _COVERED}"
NAMES: Final = (*(cause.name for cause in CAUSES), *(notice.name for notice in NOTICES))
assert len(NAMES) == len(set(NAMES)), "two rows share a name"
_FAILED: Final = {cause.name for cause in CAUSES if cause.verdict is Verdict.FAILED}
assert RUNBOOK.keys() == _FAILED, f"no section, or no failure: {RUNBOOK.keys() ^ _FAILED}"


def explain(facts: Facts) -> Explanation:
    """Return the first cause that applies, with its evidence, and every notice that applies."""
    cause = next(row for row in CAUSES if row.applies(facts))
    return Explanation(
        verdict=cause.verdict,
        cause=cause.name,
        sentence=cause.sentence(facts),
        evidence=tuple(line for line in chain(_age(facts), cause.evidence(facts)) if line),
        next_command=cause.command(facts),
        harmless=cause.harmless,
        also=tuple(
            Notice(
                cause=row.name,
                sentence=row.sentence(facts),
                next_command=row.command(facts),
                trouble=row.trouble,
            )
            for row in NOTICES
            if row.applies(facts)
        ),
    )


def _age(facts: Facts) -> Iterable[str]:
    if facts.offline:
        if facts.facts_at_ms is None:
            yield "no daemon was asked, and there are no files to read"
        else:
            written = phrases.ago(facts.facts_at_ms, facts.now_ms)
            yield f"no daemon was asked: these facts come from files, the newest of {written}"
