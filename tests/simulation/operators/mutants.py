"""Bugs of recovery, holds and the nightly job, planted one at a time: see `simulation.mutants`.

`night_spares_nothing` is two at once, for each is masked by the other: that a night looks at
accepted losses, and at holds. So is `acceptance_leaves_no_hold`: the hold is written twice.

Three that the simulation is blind for are seen by unit tests. That a hold which is ended by its
number ends all: `bucket/test_marker_promises.py`; it takes two metadata partitions with losses at
once. That a partition turns ready while it compares: `readiness/test_following.py`; the embedded
log says where it ends at once, so never behind the last batch. That the whole log is given up
without a hold: `bucket/test_bucket.py`; nights spare what is older than an accepted loss all the
same.

Two more are seen by `bucket/test_presence.py` alone: that a clone which was met is gone at its
first silence (both write so often that it is met again before anything is deleted), and that the
first file which a life finds is its forerunner's (a copied log is found out before it is ready).

Six are not hunted until a seed meets them: that a night looks once, that it asks no presence file,
that a restore does not wait for the lease, that a clone leaves no hold, and that a presence file is
written unread. These were given up while objects lay in each bucket before its first marker, so
that a hold kept everything from every night. The sixth, that a presence file tells of the replay
alone while a cut log is compared, was met in two of 2,500 seeds, and draws have shifted since.
Both of the file's words on it, alone, are seen by `daemon/metadata/test_previous_state.py`.
"""

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutants import Mutant


def _planted(name: str, module: str, old: str, new: str, *, seeds: int, first: int = 0) -> Mutant:
    return Mutant(
        name=name, module=module, old=old, new=new, seeds=seeds, first=first, scenario="operators"
    )


MUTANTS: Final[Sequence[Mutant]] = (
    _planted(
        "gaps_are_no_loss",
        "rlmm_daemon.core.readiness.follower_losses",
        "    if not given.gaps or one.failure is not None:\n        return one\n",
        "    if True:\n        return one\n",
        seeds=1,
        first=10,
    ),
    _planted(
        "recovers_what_is_not_whole",
        "rlmm_daemon.daemon.operator.recovering",
        "            problem = _problem(segment, sizes)\n",
        '            problem = ""\n',
        seeds=2,
        first=1,
    ),
    _planted(
        "snapshot_is_not_compared",
        "rlmm_daemon.daemon.following.follower",
        "        whole = await self.history.drop(loaded.fold, reason, same_log=loaded.same_log)\n",
        "        whole = True\n",
        seeds=2,
        first=285,
    ),
    _planted(
        "positions_need_no_confirmation",
        "rlmm_daemon.daemon.following.follower",
        "                    confirmed=await self._confirmed(position),\n",
        "                    confirmed=True,\n",
        seeds=2,
        first=17,
    ),
    _planted(
        "repair_looks_for_no_objects",
        "rlmm_daemon.daemon.operator.mending",
        "        if self._recovery is None:\n            for each in missing:\n",
        "        if True:\n            for each in missing:\n",
        seeds=2,
        first=3,
    ),
    _planted(
        "night_spares_nothing",
        "rlmm_daemon.core.disposal.findings",
        "    if ages.spares(found.modified_ms):\n"
        '        return " older than an accepted loss"\n'
        "    if ages.holds_object(recorded, found.modified_ms):\n",
        "    if False:\n",
        seeds=1,
        first=3,
    ),
    _planted(
        "recover_ends_nothing",
        "rlmm_daemon.daemon.operator.risen",
        "        for segment in gone:\n",
        "        for segment in ():\n",
        seeds=2,
        first=65,
    ),
    _planted(
        "marker_is_made_anew",
        "rlmm_daemon.daemon.bucket.bucket",
        "        if (why := why_not_made(history)) is not None:\n",
        "        if (why := why_not_made(history)) == 1:\n",
        seeds=2,
        first=143,
    ),
    _planted(
        "marker_made_over_objects_holds_nothing",
        "rlmm_daemon.daemon.bucket.bucket",
        "        return made if self._past is None else await self._held_if_used(made, identity)\n",
        "        return made\n",
        seeds=2,
        first=81,
    ),
    _planted(
        "holds_bind_nobody",
        "rlmm_daemon.core.disposal.holds",
        "            return hold\n",
        "            return None\n",
        seeds=2,
        first=81,
    ),
    _planted(
        "acceptance_leaves_no_hold",
        "rlmm_daemon.daemon.bucket.acceptance",
        "    accepted = accepting(loss, gaps, hold, partition_count)\n"
        "    if not await bucket.rewrite(accepted, cluster_id):\n"
        "        bucket.unwritten.append(accepted)\n"
        "        return accepted\n"
        "    await bucket.hold_longer(hold, cluster_id)\n",
        "    hold = msgspec.structs.replace(hold, metadata_partition=-1)\n"
        "    accepted = accepting(loss, gaps, hold, partition_count)\n"
        "    if not await bucket.rewrite(accepted, cluster_id):\n"
        "        bucket.unwritten.append(accepted)\n"
        "        return accepted\n",
        seeds=2,
        first=333,
    ),
    _planted(
        "accepts_before_anybody_looked",
        "rlmm_daemon.daemon.operator.mending",
        "            if self._recovery is None or not known or follower.looked_for:\n",
        "            if True:\n",
        seeds=2,
        first=41,
    ),
    _planted(
        "clone_is_not_looked_for",
        "rlmm_daemon.daemon.bucket.storage_keeper",
        "        await self._presence.require_alone()\n",
        "        return\n",
        seeds=1,
        first=938,
    ),
    _planted(
        "hold_of_a_manifest_binds_nobody",
        "rlmm_daemon.reconcile.act.quarantine",
        '        return "" if self.held is UNSET else "its manifest is held back"\n',
        '        return ""\n',
        seeds=2,
        first=171,
    ),
    _planted(
        "release_approves",
        "rlmm_daemon.reconcile.act.manifest_orders",
        "    return msgspec.structs.replace(manifest, held=UNSET)\n",
        "    return msgspec.structs.replace(manifest, held=UNSET, approved=manifest.held)\n",
        seeds=2,
        first=27,
    ),
    _planted(
        "release_releases_nothing",
        "rlmm_daemon.reconcile.act.manifest_orders",
        "    return msgspec.structs.replace(manifest, held=UNSET)\n",
        "    return manifest\n",
        seeds=1,
        first=4,
    ),
    _planted(
        "one_approval_is_for_all",
        "rlmm_daemon.reconcile.act.quarantine",
        "        if manifest.approved is not UNSET\n",
        "        if any(each.approved is not UNSET for each in manifests.values())\n",
        seeds=2,
        first=734,
    ),
    _planted(
        "approval_lets_nothing_go",
        "rlmm_daemon.reconcile.act.quarantine",
        "    let = [entry for entry in due if entry.identity in free][: safety.objects_max]\n",
        "    let = list[CondemnedObject]()\n",
        seeds=2,
        first=0,
    ),
    _planted(
        "explain_names_deletions_in_doubt",
        "rlmm_daemon.core.explain.notices",
        "    if f.on_hold:\n"
        '        return f"rlmm log recover {evidence.number(f)}"\n'
        "    if f.history_in_doubt:\n"
        '        return "rlmm cleanup"\n',
        "",
        seeds=1,
        first=294,
    ),
    _planted(
        "explain_forgets_the_failures_own_command",
        "rlmm_daemon.core.explain.causes",
        "        return instead or FAILURES[reason]",
        "        return FAILURES[reason]",
        seeds=2,
        first=6,
    ),
    _planted(
        "recovery_names_nothing_that_ends_a_hold",
        "rlmm_daemon.daemon.operator.recovering",
        '        return f"rlmm partition end-hold {which}"\n',
        "        return None\n",
        seeds=2,
        first=6,
    ),
)
