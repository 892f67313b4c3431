"""Run the quorum's simulation: many seeds, one seed with its trace, or the planted bugs.

python -m tests.simulation.quorum.run --seeds 2000 [--first S]
python -m tests.simulation.quorum.run --seed 17 [--trace [LINES]]
python -m tests.simulation.quorum.run --mutants [NAME ...]

--world submitting: what daemons submit to a log, in the place of consensus.
"""

# ruff: noqa: T201  # a command line prints

import argparse
import concurrent.futures
import functools
import gc
import importlib
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from tests.simulation import mutants
from tests.simulation.mutants import SEEDS_FACTOR, Mutant
from tests.simulation.quorum.mutants import BY_NAME

_COMMAND: Final = "python -m tests.simulation.quorum.run"
CHUNK_SEEDS: Final = 10
FAILURES_SHOWN_MAX: Final = 5
_WORLD: Final = "world"
WORLDS: Final = (_WORLD, "submitting")


@dataclass(slots=True)
class Total:
    """What many seeds add up to."""

    seeds: int = 0
    events: int = 0
    #: Of processors, in all workers together.
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Total") -> None:
        """Add what another worker found."""
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        self.counts += other.counts
        self.failures |= other.failures


def _world(name: str) -> Any:
    """Return the module of a world, imported late: a bug is planted first."""
    return importlib.import_module(f"tests.simulation.quorum.{name}")


def run_seeds(seeds: range, name: str = _WORLD) -> Total:
    """Run these seeds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    world = _world(name)
    total, began = Total(), time.process_time()
    for seed in seeds:
        outcome = world.run_seed(seed)
        total.seeds += 1
        total.events += outcome.events
        total.counts += outcome.counts
        if outcome.failure:
            total.failures[seed] = outcome.failure
    total.seconds = time.process_time() - began
    gc.collect()
    return total


def hunt(mutant: Mutant) -> tuple[int, str]:
    """Return after how many seeds a planted bug was found (0: not), and how."""
    mutants.plant(mutant)
    name = mutant.scenario if mutant.scenario in WORLDS else _WORLD
    for count in range(SEEDS_FACTOR * mutant.seeds):
        seed = mutant.first + count
        found = run_seeds(range(seed, seed + 1), name).failures
        if found:
            return count + 1, found[seed].splitlines()[0]
    return 0, "not found"


def _pool(workers: int, tasks_max: int | None = None) -> concurrent.futures.ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=spawn, max_tasks_per_child=tasks_max
    )


def run_many(name: str, first: int, count: int, workers: int) -> int:
    """Run seeds in parallel; return the exit code."""
    began, total = time.perf_counter(), Total()
    with _pool(workers) as pool:
        chunks = [
            range(begin, min(begin + CHUNK_SEEDS, first + count))
            for begin in range(first, first + count, CHUNK_SEEDS)
        ]
        for found in pool.map(functools.partial(run_seeds, name=name), chunks):
            total.add(found)
    for seed, what in sorted(total.failures.items())[:FAILURES_SHOWN_MAX]:
        print(f"{what}\n  replay: {_COMMAND} --world {name} --seed {seed} --trace")
    seconds = time.perf_counter() - began
    print(f"  {', '.join(f'{name} {n}' for name, n in sorted(total.counts.items()))}")
    print(
        f"{name}: {count} seeds, {len(total.failures)} failed, {total.events} events in "
        f"{seconds:.0f} s, {total.events / total.seconds:.0f} in a processor's second"
    )
    return 1 if total.failures else 0


def run_one(name: str, seed: int, lines: int) -> int:
    """Run one seed, and show the end of its trace; return the exit code."""
    world = _world(name)
    outcome = world.run_seed(seed, keep_tail=lines > 0)
    for line in outcome.tail[-lines:] if lines else ():
        print(line)
    print(f"{outcome.events} events, trace {outcome.trace:08x}")
    print(outcome.failure or f"seed {seed}: no failure")
    return 1 if outcome.failure else 0


def hunt_all(workers: int, names: Sequence[str]) -> int:
    """Hunt each planted bug in a process of its own; one that is not found fails the run."""
    chosen = [BY_NAME[name] for name in names] or list(BY_NAME.values())
    missed = 0
    with _pool(workers, tasks_max=1) as pool:
        hunts = {pool.submit(hunt, mutant): mutant for mutant in chosen}
        for done in concurrent.futures.as_completed(hunts):
            mutant, (seeds, how) = hunts[done], done.result()
            missed += not seeds
            word = f"found after {seeds} seeds" if seeds else "NOT FOUND"
            print(f"{mutant.name}: {word} (recorded {mutant.seeds})  {how[:110]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs found")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog=_COMMAND)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", type=int, nargs="?", const=100, default=0, metavar="LINES")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="hunt these, or all")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--world", choices=WORLDS, default=_WORLD)
    chosen = parser.parse_args(arguments)
    if chosen.mutants is not None:
        return hunt_all(chosen.workers, chosen.mutants)
    if chosen.seed is not None:
        return run_one(chosen.world, chosen.seed, chosen.trace)
    return run_many(chosen.world, chosen.first, chosen.seeds, chosen.workers)


if __name__ == "__main__":
    sys.exit(main())
