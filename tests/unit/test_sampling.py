"""The benchmarks' sampler: what worked is found, in proportion, and what slept is not."""

import asyncio
import gc
import sys
import time

from tests.benchmarks.sampling import Sampler


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def spin_less(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


#: Of three quarters of so many, no chance makes less than six tenths.
LOOKS = 300
ROUNDS_MAX = 1_000


def test_a_threads_time_is_shared_out_among_its_functions():
    async def work() -> None:
        for rounds in range(ROUNDS_MAX):
            # A machine that has other things to do lets the sampler look less often.
            if rounds >= 8 and sampler.looks >= LOOKS:
                return
            # A look that comes late, on a busy machine, counts for what it meets: little of these.
            spin(0.06)
            await asyncio.sleep(0.02)
            spin_less(0.02)

    began = time.thread_time()
    with Sampler() as sampler:
        asyncio.run(work())
    spent = time.thread_time() - began
    found = {name.split()[-1]: seconds for name, seconds in sampler.by_function().items()}
    assert abs(sum(found.values()) - sampler.seconds) < 1e-6
    assert sampler.seconds >= 0.6
    assert abs(sampler.seconds - spent) < spent / 10, (
        "no sleep is counted, which would add a quarter"
    )
    assert 0.6 < found["spin"] / sampler.seconds < 0.9
    assert 0.1 < found["spin_less"] / sampler.seconds < 0.4
    assert sampler.own_seconds < sampler.seconds / 4


def test_no_garbage_is_collected_while_frames_are_read(monkeypatch):
    """In CPython 3.11 it may end in a deadlock of all threads, which no time limit ends."""
    read, collects = sys._current_frames, []

    def seen():
        collects.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", seen)
    with Sampler():
        spin(0.1)
    assert collects
    assert not any(collects)
    assert gc.isenabled()
