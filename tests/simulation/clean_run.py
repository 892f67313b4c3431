"""Run the cleaner's simulation: many seeds, one seed, or the planted bugs.

python -m tests.simulation.clean_run --seeds 500
python -m tests.simulation.clean_run --seed 17
python -m tests.simulation.clean_run --mutants
"""

# ruff: noqa: T201  # a command line prints

import argparse
import concurrent.futures
import importlib
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

import structlog

from tests.simulation import mutants
from tests.simulation.mutants import SEEDS_FACTOR, Mutant

CHUNK_SEEDS: Final = 10
#: A process keeps some 2 MiB of each seed, so it does not run them all.
CHUNKS_PER_CHILD: Final = 25
_STEPS: Final = "rlmm_daemon.core.disposal.steps"
_CACHE: Final = "rlmm_daemon.core.fold.cache"
_ASKED: Final = (
    "unknown = await self._cluster.topic_ids_unknown(frozenset(topic_ids))\n"
    "        except (RlmmError, TimeoutError):\n"
    "            return dict.fromkeys(topic_ids, "
)

#: `seeds` is how many it took when it was recorded.
MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="removes_without_the_second_fact",
        module=_STEPS,
        old="    (lambda f: f.proof is Proof.ALIVE, PartitionStep.HOLD_ALIVE),\n",
        new="",
        seeds=12,
    ),
    Mutant(
        name="finishes_without_a_listing",
        module=_STEPS,
        old="    (lambda f: f.listing is Listing.NOT_TAKEN, PartitionStep.LIST),\n",
        new="",
        seeds=27,
    ),
    Mutant(
        name="deletes_objects_before_the_event",
        module="rlmm_daemon.daemon.cleaner.segments",
        old="                await self._start(batch)\n",
        new=(
            "                for i in batch.ids:\n"
            "                    s = self._segment(batch.partition, i)\n"
            "                    batch.going |= {i: s} if s else {}\n"
            "                await self._delete_objects(batch)\n"
            "                await self._start(batch)\n"
        ),
        seeds=5,
    ),
    Mutant(
        name="finishes_although_a_delete_failed",
        module="rlmm_daemon.daemon.cleaner.segments",
        old="return gone + [each for each in dict.fromkeys(owner.values()) if each not in failed]",
        new="return gone + list(dict.fromkeys(owner.values()))",
        seeds=10,
    ),
    Mutant(
        name="ends_nothing_where_it_follows_nothing",
        module="rlmm_daemon.daemon.cleaner.cleaner",
        old="                        await self._until_passed(number)\n",
        new="                        pass\n",
        seeds=10,
    ),
    Mutant(
        name="a_new_owner_starts_nothing",
        module="rlmm_daemon.daemon.cleaner.removal",
        old="                return await self._delete_segments()\n",
        new="                return False\n",
        seeds=3,
    ),
    Mutant(
        name="trusts_its_delete_whatever_it_replaced",
        module="rlmm_daemon.daemon.cleaner.stuck",
        old=(
            "return isinstance(outcome, Applied) and outcome.previous_state is "
            "S.COPY_SEGMENT_STARTED"
        ),
        new="return isinstance(outcome, Applied)",
        seeds=14,
    ),
    Mutant(
        name="ends_copies_without_the_flag",
        module="rlmm_daemon.daemon.cleaner.stuck",
        old="                ONLY_IF_STARTED,\n",
        new="                None,\n",
        seeds=13,
    ),
    Mutant(
        name="takes_young_copies_for_stuck",
        module=_STEPS,
        old="(lambda f: f.running_here or f.age_ms <= f.patience_ms, CopyStep.LIVE)",
        new="(lambda f: f.running_here, CopyStep.LIVE)",
        seeds=5,
    ),
    Mutant(
        name="ends_copies_of_registered_brokers",
        module=_STEPS,
        old="    (lambda f: f.registered is False and f.lease_over is True, CopyStep.REMOVE),\n",
        new="    (lambda f: True, CopyStep.REMOVE),\n",
        seeds=5,
    ),
    Mutant(
        name="ends_partitions_that_foreign_managers_read",
        module=_STEPS,
        old="    (lambda f: not f.peers, PartitionStep.HOLD_PEERS),\n",
        new="",
        seeds=5,
    ),
    Mutant(
        name="takes_no_answer_for_a_proof",
        module="rlmm_daemon.daemon.cleaner.proof",
        old=_ASKED + "Proof.UNKNOWN)\n",
        new=_ASKED + "Proof.GONE)\n",
        seeds=11,
    ),
    Mutant(
        name="knows_its_own_copies_deadline_only",
        module="rlmm_daemon.daemon.cleaner.segments",
        old="found = peers.copy_deadline_ms(self._tools.options.copy_deadline_seconds)",
        new="found = round(1000 * self._tools.options.copy_deadline_seconds)",
        seeds=6,
    ),
    Mutant(
        name="forgets_marks_at_a_restart",
        module=_CACHE,
        old="            self.delete_state = PartitionDeleteState(sealed.entry.delete_state)\n",
        new="            pass\n",
        seeds=2,
    ),
)
BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}


def run_seeds(seeds: range) -> tuple[int, dict[int, str]]:
    """Return the steps of these seeds, and what failed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    cleaner = importlib.import_module("tests.simulation.cleaner")  # late: a bug is planted first
    steps, failures = 0, {}
    for seed in seeds:
        try:
            steps += cleaner.run_seed(seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            failures[seed] = f"{type(error).__name__}: {error}"
    return steps, failures


def hunt(mutant: Mutant) -> tuple[int, str]:
    """Return after how many seeds a planted bug was found (0: not), and how."""
    mutants.plant(mutant)
    for seed in range(SEEDS_FACTOR * mutant.seeds):
        _, failures = run_seeds(range(seed, seed + 1))
        if failures:
            return seed + 1, failures[seed]
    return 0, "not found"


def _pool(workers: int, tasks_max: int | None = None) -> concurrent.futures.ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=spawn, max_tasks_per_child=tasks_max
    )


def run_many(first: int, count: int, workers: int) -> int:
    """Run seeds in parallel; return the exit code."""
    began, total = time.perf_counter(), 0
    failures: dict[int, str] = {}
    with _pool(workers, tasks_max=CHUNKS_PER_CHILD) as pool:
        chunks = [
            range(begin, min(begin + CHUNK_SEEDS, first + count))
            for begin in range(first, first + count, CHUNK_SEEDS)
        ]
        for steps, failed in pool.map(run_seeds, chunks):
            total += steps
            failures |= failed
    for seed, what in sorted(failures.items())[:5]:
        print(f"{what}\n  replay: python -m tests.simulation.clean_run --seed {seed}")
    seconds = time.perf_counter() - began
    print(
        f"cleaner: {count} seeds, {len(failures)} failed, {total} steps, "
        f"{count / seconds:.1f} seeds/s in {seconds:.0f} s"
    )
    return 1 if failures else 0


def hunt_all(workers: int, names: Sequence[str]) -> int:
    """Hunt each planted bug in a process of its own; one that is not found fails the run."""
    chosen = [BY_NAME[name] for name in names] or list(MUTANTS)
    missed = 0
    with _pool(workers, tasks_max=1) as pool:
        for mutant, (seeds, how) in zip(chosen, pool.map(hunt, chosen), strict=True):
            missed += not seeds
            word = f"found after {seeds} seeds" if seeds else "NOT FOUND"
            print(f"{mutant.name}: {word} (recorded {mutant.seeds})  {how[:110]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs found")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.clean_run")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="hunt these, or all")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    chosen = parser.parse_args(arguments)
    if chosen.mutants is not None:
        return hunt_all(chosen.workers, chosen.mutants)
    if chosen.seed is not None:
        _, failures = run_seeds(range(chosen.seed, chosen.seed + 1))
        print(failures.get(chosen.seed, f"seed {chosen.seed}: no failure"))
        return 1 if failures else 0
    return run_many(chosen.first, chosen.seeds, chosen.workers)


if __name__ == "__main__":
    sys.exit(main())
