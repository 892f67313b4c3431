"""The machinery as a whole finds what is planted, reports it, and repeats itself exactly."""

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import toy_log
from tests.simulation.disk import DiskFaults
from tests.simulation.event_log import EventLogScenario
from tests.simulation.kafka.mutants import MUTANTS as KAFKA_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant, mutated
from tests.simulation.operators.mutants import MUTANTS as OPERATORS_MUTANTS
from tests.simulation.run import EMBEDDED
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Outcome, helpful_switches, run_seed

ROOT = Path(__file__).parents[2]
SOURCE = Path(toy_log.__file__).read_text(encoding="utf-8")


def scenario_of(toy: Any) -> Callable[[int, Swarm], EventLogScenario]:
    return EventLogScenario.of(
        lambda life, _: toy.ToyLog(life.disk, life.swarm.partitions), reads_full=False
    )


def first_failure(toy: Any, seeds: int) -> Outcome | None:
    outcomes = (run_seed(seed, scenario_of(toy)) for seed in range(seeds))
    return next((outcome for outcome in outcomes if outcome.failure is not None), None)


def toy_with(old: str, new: str) -> Any:
    bug = Mutant(name="planted", module=toy_log.__name__, old=old, new=new, seeds=1)
    module = types.ModuleType("toy_with_a_bug")
    exec(compile(mutated(SOURCE, bug), "toy_with_a_bug", "exec"), module.__dict__)
    return module


def test_a_log_that_keeps_its_promises_passes():
    assert first_failure(toy_log, 25) is None


@pytest.mark.parametrize(
    ("old", "new", "seeds"),
    [
        ("                await self._files[partition].fdatasync()\n", "", 30),
        ("            written += await file.pwrite(offset + written, data[written:])",
         "            await file.pwrite(offset + written, data[written:]); break", 30),
        ("                raise OutcomeUnknown from error", "                raise Draining", 60),
        ("        self._epoch = max([*known, await self._stored_epoch()]) + 1",
         "        self._epoch = 1", 30),
        ("len(self._lines[partition]) - 1", "len(self._lines[partition])", 5),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found_within_a_few_seeds(old: str, new: str, seeds: int):
    outcome = first_failure(toy_with(old, new), seeds)
    assert outcome is not None


def test_a_report_names_seed_cause_draw_and_the_steps_before():
    forgetful = toy_with("len(self._lines[partition]) - 1", "len(self._lines[partition])")
    outcome = first_failure(forgetful, 5)
    assert outcome is not None
    assert outcome.failure is not None
    for part in (f"seed {outcome.seed}: Violation", "swarm draw", "latency_seconds=", "  step "):
        assert part in outcome.failure


def test_switching_a_fault_off_tells_whether_it_matters():
    careless = toy_with(
        "            written += await file.pwrite(offset + written, data[written:])",
        "            await file.pwrite(offset + written, data[written:]); break",
    )
    outcome = first_failure(careless, 30)
    assert outcome is not None
    swarm = Swarm.draw(outcome.seed)
    assert swarm.disk.short_write
    assert "short_write" in helpful_switches(outcome.seed, scenario_of(careless), swarm)
    assert not swarm.disk.without("short_write").short_write
    assert swarm.disk.calm().sync_error == DiskFaults().sync_error


def test_a_log_that_hangs_is_a_violation_that_says_where():
    stuck = toy_with(
        "        async with self._lock:\n            if self._broken",
        "        async with self._lock:\n            await asyncio.Event().wait()\n"
        "            if self._broken",
    )
    outcome = first_failure(stuck, 10)
    assert outcome is not None
    assert outcome.failure is not None
    assert "not answered" in outcome.cause or "calm, yet not done" in outcome.cause
    assert "Event.wait" in outcome.failure


def test_the_same_seed_repeats_itself():
    def traces() -> list[int]:
        return [run_seed(seed, scenario_of(toy_log)).trace for seed in range(8)]

    first = traces()
    assert first == traces()
    assert len(set(first)) == 8


@pytest.mark.parametrize(
    ("chosen", "count"),
    [("--seeds 3 --workers 1", len(EMBEDDED)), ("--scenario kafka --seed 12", 1)],
)
def test_two_processes_with_different_hash_seeds_print_the_same_trace(chosen: str, count: int):
    def trace(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.simulation.run", *chosen.split()]
        output = subprocess.run(
            command, env=environment, text=True, cwd=ROOT, capture_output=True, check=True
        ).stdout
        hashes = re.findall(r"trace ([0-9a-f]{16})", output)
        assert len(hashes) == count
        return hashes

    assert trace("1") == trace("4711")


@pytest.mark.parametrize(
    "mutant", [*MUTANTS, *KAFKA_MUTANTS, *OPERATORS_MUTANTS], ids=lambda mutant: mutant.name
)
def test_every_mutant_still_fits_its_module(mutant: Mutant):
    path = ROOT / (mutant.module.replace(".", "/") + ".py")
    changed = mutated(path.read_text(encoding="utf-8"), mutant)
    compile(changed, str(path), "exec")


def test_a_mutant_that_no_longer_fits_is_an_error():
    stale = Mutant(name="stale", module="m", old="gone", new="", seeds=1)
    with pytest.raises(RuntimeError, match="no longer fits: its text occurs 0 times"):
        mutated("something else", stale)


def test_life_streams_do_not_shift_each_other():
    seen: list[list[float]] = []

    class Probe:
        crash_stretch = 1

        async def live(self, life: Life) -> None:
            seen.append([life.rng("a").random(), life.rng("b").random(), life.rng("a").random()])

        def verify(self) -> None: ...

        def summary(self) -> dict[str, int]:
            return {}

    assert run_seed(1, lambda *_: Probe()).failure is None
    assert all(a == again != b for a, b, again in seen)
