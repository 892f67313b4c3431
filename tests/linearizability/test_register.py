"""Histories of a register over a quorum of processes, under faults, judged by Porcupine.

Asked for by RLMM_TEST_LINEARIZABILITY=1; `make test-linearizability` also builds the checker.
A history that is not linearizable is kept under var/linearizability.
"""

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.linearizability.history import CHECK, History, Operation, judged
from tests.linearizability.processes import processes

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLMM_TEST_LINEARIZABILITY"),
    reason="needs Go's checker: make test-linearizability",
)

ROUNDS = int(os.environ.get("RLMM_TEST_LINEARIZABILITY_ROUNDS", "2"))
FAULTS = ("kill", "pause", "isolate", "delay")
#: So many quorums are tried until a deposed leader answers what is old: about each second does.
STALE_TRIES = 12


def operation(client: int, kind: str, value: int, call: int, end: int | None) -> Operation:
    return Operation(client=client, kind=kind, value=value, call=call, return_=end)


def verdict(tmp_path: Path, *operations: Operation) -> str:
    path = tmp_path / "history.json"
    path.write_bytes(msgspec.json.encode(operations))
    return judged(path)


ONE, TWO = operation(1, "write", 1, 0, 10), operation(1, "write", 2, 20, 30)
LOST = operation(1, "write", 2, 20, None)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((ONE, TWO, operation(2, "read", 2, 40, 50)), "ok"),
        ((ONE, TWO, operation(2, "read", 1, 25, 50)), "ok"),
        ((ONE, TWO, operation(2, "read", 1, 40, 50)), "illegal"),
        ((ONE, LOST, operation(2, "read", 1, 40, 50)), "ok"),
        ((ONE, LOST, operation(2, "read", 2, 40, 50)), "ok"),
        (
            (ONE, LOST, operation(2, "read", 2, 40, 50), operation(3, "read", 1, 60, 70)),
            "illegal",
        ),
        ((ONE, LOST, operation(2, "read", 2, 12, 15)), "illegal"),
        ((ONE, operation(2, "read", 7, 40, 50)), "illegal"),
    ],
    ids=[
        "newest",
        "concurrent",
        "stale",
        "lost and never came",
        "lost and came",
        "came and went",
        "read before it was written",
        "never written",
    ],
)
def test_the_checker_knows_what_a_register_may_answer(tmp_path, operations, expected):
    assert verdict(tmp_path, *operations).startswith(expected)


async def tried(tmp_path: Path, seed: int, kinds: list[str], *, stale: bool = False) -> str:
    """Return the verdict on one history; one that is wrong is kept."""
    sync_seconds = 0.05 if seed % 2 else 0.0
    async with processes(tmp_path, stale=stale, sync_seconds=sync_seconds) as quorum:
        history = History(quorum, seed)
        await history.run(kinds)
    path = tmp_path / "history.json"
    path.write_bytes(msgspec.json.encode(history.operations))
    said = judged(path)
    print(f"seed {seed}, {', '.join(history.faults)}: {said}")  # noqa: T201 - shown by -s
    if not said.startswith("ok"):
        name = f"{'stale' if stale else 'found'}-{seed}.json"
        shutil.copy(path, CHECK.parent / name)
        said += f", kept as {CHECK.parent / name}"
    return said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_what_clients_see_is_linearizable(tmp_path, seed):
    kinds = list(FAULTS)
    random.Random(seed).shuffle(kinds)
    said = await tried(tmp_path, seed, kinds)
    assert said.startswith("ok"), said


@pytest.mark.timeout(300)
async def test_a_stale_read_is_found(tmp_path):
    """A leader that answers from what it knows is caught once it was cut off or paused."""
    for seed in range(STALE_TRIES):
        home = tmp_path / str(seed)
        home.mkdir()
        said = await tried(home, seed, ["pause", "delay"], stale=True)
        assert not said.startswith("undecided"), said
        if said.startswith("illegal"):
            return
    pytest.fail("no stale read was found")
