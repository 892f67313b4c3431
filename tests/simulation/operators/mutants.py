"""Bugs of recovery, holds and the nightly job, planted one at a time: see `simulation.mutants`."""

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutants import Mutant

_DAEMON: Final = "rlmm_daemon.daemon"
_RECONCILE: Final = "rlmm_daemon.reconcile"


def _planted(name: str, module: str, old: str, new: str, *, seeds: int, first: int = 0) -> Mutant:
    return Mutant(
        name=name, module=module, old=old, new=new, seeds=seeds, first=first, scenario="operators"
    )


MUTANTS: Final[Sequence[Mutant]] = (
    _planted(
        "repair_looks_for_no_objects",
        f"{_DAEMON}.mending",
        "        if self._recovery is None:\n            for each in missing:\n",
        "        if True:\n            for each in missing:\n",
        seeds=30,
    ),
    _planted(
        "acceptance_leaves_no_hold",
        f"{_DAEMON}.bucket",
        "            holds=with_hold(present.held, hold),\n",
        "            holds=present.holds,\n",
        seeds=30,
    ),
    _planted(
        "cleaner_obeys_no_hold",
        f"{_DAEMON}.cleaner.stuck",
        "        return held(self._holds or (), self._number, event_ms) is not None\n",
        "        return False\n",
        seeds=30,
    ),
    _planted(
        "gaps_are_no_loss",
        "rlmm_daemon.core.following",
        "    if not given.gaps or one.failure is not None:\n        return one\n",
        "    if True:\n        return one\n",
        seeds=30,
    ),
    _planted(
        "accepts_before_anybody_looked",
        f"{_DAEMON}.mending",
        "            if self._recovery is None or not follower.history.missing_count or "
        "follower.looked_for:\n                continue\n",
        "            if True:\n                continue\n",
        seeds=60,
    ),
    _planted(
        "one_hold_ends_all",
        f"{_DAEMON}.bucket",
        "holds=() if metadata_partition is None else tuple(left)",
        "holds=()",
        seeds=60,
    ),
    _planted(
        "recovers_what_is_not_whole",
        f"{_DAEMON}.recovering",
        "            problem = _problem(segment, sizes)\n",
        '            problem = ""\n',
        seeds=60,
    ),
    _planted(
        "snapshot_is_not_compared",
        f"{_DAEMON}.follower",
        '        await self.history.drop(loaded.fold, f"the snapshot was refused: {why}")\n',
        "",
        seeds=60,
    ),
    _planted(
        "positions_need_no_confirmation",
        f"{_DAEMON}.follower",
        "                    confirmed=await self._confirmed(position),\n",
        "                    confirmed=True,\n",
        seeds=60,
    ),
    _planted(
        "marker_is_made_anew",
        f"{_DAEMON}.bucket",
        "        if (why := why_not_made(await self._past.history())) is not None:\n",
        "        if (why := why_not_made(await self._past.history())) is not None and False:\n",
        seeds=60,
    ),
    _planted(
        "night_spares_no_loss",
        "rlmm_daemon.core.disposal.findings",
        "        return self.loss_ms > 0 and modified_ms <= self.loss_ms + self.skew_ms\n",
        "        return False\n",
        seeds=60,
    ),
    _planted(
        "night_believes_a_log_with_gaps",
        f"{_RECONCILE}.guards",
        "    for lost in evidence.lost:\n",
        "    for lost in ():\n",
        seeds=60,
    ),
    _planted(
        "night_asks_no_presence",
        f"{_RECONCILE}.guards",
        "    return [*found, *_presences(evidence), *_damaged(evidence)]\n",
        "    return [*found, *_damaged(evidence)]\n",
        seeds=60,
    ),
    _planted(
        "night_looks_once",
        f"{_RECONCILE}.executing",
        "            seen = await self._look()\n",
        "            seen = self._first = getattr(self, '_first', None) or await self._look()\n",
        seeds=60,
    ),
    _planted(
        "restore_does_not_wait",
        f"{_RECONCILE}.lease",
        "    while (found := await look(storage)) is not None and found.ends_ms > now_ms():\n",
        "    while (found := None) is not None:\n",
        seeds=60,
    ),
)
