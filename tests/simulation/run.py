"""The command line: many seeds, one seed with its trace, or the hunt for every planted bug.

python -m tests.simulation.run --seeds 1000 [--first S] [--scenario event_log] [--mutant NAME]
python -m tests.simulation.run --seed X --trace
python -m tests.simulation.run --mutants
"""

# ruff: noqa: T201  # a command line prints

import argparse
import concurrent.futures
import gc
import importlib
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation import mutants
from tests.simulation.kafka.mutants import MUTANTS as KAFKA_MUTANTS
from tests.simulation.operators.mutants import MUTANTS as OPERATORS_MUTANTS

#: Scenario name -> the module that has it; imported late, so that a mutant can be planted first.
SCENARIOS: Final = {
    "event_log": "tests.simulation.embedded_log",
    "manager": "tests.simulation.manager",
    "kafka": "tests.simulation.kafka.peer",
    "operators": "tests.simulation.operators.scenario",
}
#: What `--scenario all` means: the one over Kafka has a run of its own.
EMBEDDED: Final = ("event_log", "manager")
_ELSEWHERE: Final = (*KAFKA_MUTANTS, *OPERATORS_MUTANTS)
BY_NAME: Final = mutants.BY_NAME | {mutant.name: mutant for mutant in _ELSEWHERE}
assert len(BY_NAME) == len(mutants.MUTANTS) + len(_ELSEWHERE), "two mutants share a name"
CHUNK_SEEDS: Final = 25
FAILURES_SHOWN_MAX: Final = 3
#: Where a planted bug is looked for that the seeds do not meet in which it was recorded.
FURTHER_SEEDS: Final = 1500
#: What has to happen in so many seeds of a scenario: one in which nothing happens finds nothing.
HAPPENS_WITHIN_SEEDS: Final = 40
HAPPENS: Final = {
    "operators": (
        "finished", "deleted", "judged", "compactions", "night deletes", "held back",
        "kept when due", "gone after a release", "gone by an approval",
    )
}  # fmt: skip
#: A planted text that names what is not there any more ends each seed, and finds nothing.
_BROKEN: Final = ("NameError", "AttributeError", "ImportError", "TypeError")


@dataclass(slots=True)
class Total:
    """What many seeds add up to."""

    seeds: int = 0
    steps: int = 0
    lives: int = 0
    virtual_seconds: float = 0.0
    #: Seed -> trace hash of its run.
    traces: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    #: Seed -> report.
    failures: dict[int, str] = field(default_factory=dict)
    causes: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Total") -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.lives += other.lives
        self.virtual_seconds += other.virtual_seconds
        self.traces |= other.traces
        self.counts.update(other.counts)
        self.failures |= other.failures
        self.causes |= other.causes

    @property
    def trace(self) -> int:
        """One hash for all seeds, whatever process ran which."""
        return hash(tuple(sorted(self.traces.items())))


def run_chunk(scenario: str, seeds: Sequence[int], *, stop_at_failure: bool = False) -> Total:
    """Run some seeds in this process."""
    world = importlib.import_module("tests.simulation.world")
    make = importlib.import_module(SCENARIOS[scenario]).scenario
    total = Total()
    for seed in seeds:
        outcome = world.run_seed(seed, make)
        total.seeds += 1
        total.steps += outcome.steps
        total.lives += outcome.lives
        total.virtual_seconds += outcome.virtual_seconds
        total.traces[seed] = outcome.trace
        total.counts.update(outcome.counts)
        if outcome.failure is not None:
            total.failures[seed] = outcome.failure
            total.causes[seed] = outcome.cause
            if stop_at_failure:
                break
    gc.collect()  # between seeds, never in one
    return total


def hunt(mutant: mutants.Mutant) -> tuple[Total, float]:
    """Plant one bug in this process, which is its own, and run seeds until one fails.

    First those in which it was met when it was recorded. Whatever makes the product draw once more
    or less shifts what every seed holds; then it is looked for in all of them.
    """
    started = time.perf_counter()
    mutants.plant(mutant)
    total = Total()
    recorded = _chunks(mutant.first, mutant.seeds * mutants.SEEDS_FACTOR)
    for chunk in itertools.chain(recorded, _chunks(0, FURTHER_SEEDS)):
        total.add(run_chunk(mutant.scenario, chunk, stop_at_failure=True))
        if total.failures:
            break
    return total, time.perf_counter() - started


def _chunks(first: int, count: int) -> Iterator[range]:
    for begin in range(first, first + count, CHUNK_SEEDS):
        yield range(begin, min(begin + CHUNK_SEEDS, first + count))


def _pool(workers: int, **options: Any) -> concurrent.futures.ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # a fork would bring modules already imported
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn, **options)


def _plant_by_name(name: str) -> None:
    mutants.plant(BY_NAME[name])


def run_many(scenario: str, first: int, count: int, workers: int, mutant: str | None) -> int:
    started = time.perf_counter()
    total = Total()
    options: dict[str, Any] = {}
    if mutant is not None:
        options = {"initializer": _plant_by_name, "initargs": (mutant,)}
    with _pool(workers, **options) as pool:
        jobs = [pool.submit(run_chunk, scenario, chunk) for chunk in _chunks(first, count)]
        for job in concurrent.futures.as_completed(jobs):
            total.add(job.result())
    _print_total(scenario, total, time.perf_counter() - started, mutant)
    absent = [each for each in HAPPENS.get(scenario, ()) if not total.counts[each]]
    if absent and count >= HAPPENS_WITHIN_SEEDS:
        print(f"in all these seeds there was not one of: {', '.join(absent)}")
        return 1
    return 1 if total.failures else 0


def _print_total(scenario: str, total: Total, seconds: float, mutant: str | None) -> None:
    planted = f" --mutant {mutant}" if mutant is not None else ""
    for seed in sorted(total.failures)[:FAILURES_SHOWN_MAX]:
        print(total.failures[seed])
        replay = f"python -m tests.simulation.run --scenario {scenario} --seed {seed}{planted}"
        print(f"  replay: {replay}\n")
    for cause, times in Counter(total.causes.values()).most_common():
        print(f"{times:>6} x {cause.splitlines()[0][:200]}")
    counts = " ".join(f"{name.replace(' ', '_')}={n}" for name, n in sorted(total.counts.items()))
    print(
        f"{scenario}: {total.seeds} seeds, {len(total.failures)} failed, {total.lives} lives,"
        f" {total.steps} steps, {total.virtual_seconds / 3600:.1f} virtual hours\n"
        f"  {counts}\n"
        f"  {total.seeds / seconds:.1f} seeds/s, {total.steps / seconds:,.0f} steps/s"
        f" in {seconds:.1f} s\n"
        f"  trace {total.trace & 0xFFFFFFFFFFFFFFFF:016x}"
    )


def run_one(scenario: str, seed: int, mutant: str | None, *, trace: bool) -> int:
    if mutant is not None:
        _plant_by_name(mutant)
    world = importlib.import_module("tests.simulation.world")
    make = importlib.import_module(SCENARIOS[scenario]).scenario
    outcome = world.run_seed(seed, make, keep_tail=trace)
    print(outcome.failure or f"seed {seed}: no failure")
    if outcome.cause:
        swarm = importlib.import_module("tests.simulation.swarm").Swarm.draw(seed)
        helpful = world.helpful_switches(seed, make, swarm)
        print(f"  passes without any one of: {', '.join(helpful) or 'none'}")
    print(f"  trace {outcome.trace & 0xFFFFFFFFFFFFFFFF:016x} steps {outcome.steps}")
    return 1 if outcome.cause else 0


def hunt_all(workers: int, chosen: Sequence[mutants.Mutant]) -> int:
    """Hunt each mutant in a process of its own; the run fails if one is not found."""
    missed = 0
    width = max(len(mutant.name) for mutant in chosen)
    with _pool(workers, max_tasks_per_child=1) as pool:
        jobs = [(mutant, pool.submit(hunt, mutant)) for mutant in chosen]
        for mutant, job in jobs:
            total, seconds = job.result()
            cause = next(iter(total.causes.values()), "").partition("\n")[0]
            met = bool(total.failures) and not cause.startswith(_BROKEN)
            found = "found" if met else "NOT FOUND"
            missed += not met
            where = _met(mutant, total)
            print(
                f"{mutant.name:<{width}}  {found} after {total.seeds} seeds"
                f" (recorded {mutant.seeds}) in {seconds:.1f} s{where}  {cause[:110]}",
                flush=True,
            )
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs found")
    return 1 if missed else 0


def _met(mutant: mutants.Mutant, total: Total) -> str:
    """Return where a bug was met, if not where it was recorded."""
    seed = next(iter(total.failures), mutant.first)
    within = mutant.first <= seed < mutant.first + mutant.seeds * mutants.SEEDS_FACTOR
    return "" if within else f", in seed {seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seed", type=int, help="only this one, with its report")
    parser.add_argument("--trace", action="store_true", help="with --seed: the tail in any case")
    parser.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--mutant", choices=list(BY_NAME), help="plant this bug")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="hunt these planted bugs, or all of them"
    )
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    chosen = parser.parse_args(arguments)
    if chosen.mutants is not None:
        scenarios = EMBEDDED if chosen.scenario == "all" else (chosen.scenario,)
        planted = [each for each in BY_NAME.values() if each.scenario in scenarios]
        return hunt_all(chosen.workers, [BY_NAME[name] for name in chosen.mutants] or planted)
    names = list(EMBEDDED) if chosen.scenario == "all" else [chosen.scenario]
    if chosen.mutant:
        names = [BY_NAME[chosen.mutant].scenario]
    if chosen.seed is not None:
        return max(run_one(n, chosen.seed, chosen.mutant, trace=chosen.trace) for n in names)
    return max(
        run_many(n, chosen.first, chosen.seeds, chosen.workers, chosen.mutant) for n in names
    )


if __name__ == "__main__":
    sys.exit(main())
