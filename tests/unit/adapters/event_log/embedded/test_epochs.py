"""Leader epochs of batches that lie outside of the CRC, damaged: the log knows better."""

from typing import Any

import pytest

from rlmm_daemon.adapters.event_log.embedded.epochs import EpochHistory
from rlmm_daemon.codec import scan
from tests.contract.event_log import P0, values
from tests.unit.adapters.event_log.embedded.test_log import LARGE, SMALL, Bench, bench

__all__ = ["bench"]

_EPOCH_AT = 12


BEGINNINGS = (0, 4, 8)
_EPOCHS = (*range(8), 1 << 25)


def ends(*told: list[Any]) -> list[list[tuple[int, int]]]:
    """Return of each what it says of where epochs end."""
    return [each[: len(_EPOCHS)] for each in told]


async def seen(bench: Bench, options) -> list[Any]:
    """Return what a life says of epochs: where each ends, and what followers are told."""
    log = await bench.open(options)
    told = list[Any]()
    for epoch in _EPOCHS:
        found = await log.epoch_end(P0, epoch)
        told.append((found.epoch, found.end_offset))
    at = 0
    follower = log.follow(P0, 0, epoch=-1)
    async for batch in follower:
        for _ in range(batch.next_offset - at):
            told.append(batch.leader_epoch)
        at = batch.next_offset
        if at >= (await log.end_offsets([P0]))[P0].end:
            break
    await follower.aclose()
    await bench.kill(log)
    return told


@pytest.mark.parametrize("options", [SMALL, LARGE])
async def test_no_flipped_high_bit_of_an_epoch_is_believed(bench: Bench, options) -> None:
    """Whichever batch it hits: its neighbours and the newest generation tell."""
    for begin in BEGINNINGS:
        log = await bench.open(options)
        for value in values(4, begin):
            await log.append(P0, value)
        await bench.kill(log)
    whole = await seen(bench, options)
    for path in bench.files():
        content = path.read_bytes()
        for found in scan.walk(content, int(path.stem)).found:
            for bit in (1 << 25, 1 << 11, 1 << 31):
                damaged = bytearray(content)
                at = slice(found.position + _EPOCH_AT, found.position + _EPOCH_AT + 4)
                epoch = int.from_bytes(damaged[at], "big") ^ bit
                damaged[at] = epoch.to_bytes(4, "big")
                path.write_bytes(damaged)
                told = await seen(bench, options)
                where = (path.name, found, bit)
                if found.base_offset in BEGINNINGS:  # of which epoch it was, nobody can tell
                    assert all(
                        a[0] == b[0] and b[1] - a[1] <= 1
                        for a, b in zip(*ends(whole, told), strict=True)
                    ), where
                else:
                    assert told == whole, where
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("written", "damaged"),
    [
        ([4, 5, 5, 6], [4, 7, 5, 6]),
        ([4, 5, 5, 6], [4, 5, 7, 6]),
        ([4, 5, 5, 6], [4, 5, 1, 6]),
        ([4, 5, 5, 5], [4, 5, 7, 5]),
        ([4, 5, 5, 5], [4, 5, 5, 4]),
        ([4, 4, 4, 6], [5, 4, 4, 6]),
        ([4, 4, 4, 6], [4, 0, 4, 6]),
        ([4], [4 + (1 << 25)]),
        ([4, 6], [4, 6 + (1 << 25)]),
        ([4, 9], [4, 9 + 2_048]),
        ([4, 4], [4, 4 + 2_048]),
        ([4, 4, 5_000], [4, 4 + 2_048, 5_000]),
        ([4, 4, 4, 5_000], [4, 4 + 2_048, 4, 5_000]),
    ],
)
def test_an_epoch_that_its_neighbours_contradict_begins_none(written, damaged) -> None:
    known = EpochHistory()
    known.learn([(epoch, at) for at, epoch in enumerate(damaged)], newest_epoch=9)
    for epoch, begin in known.entries:
        assert written.index(epoch) <= begin, "none begins before it did, and no other does"
    for at, epoch in enumerate(written):
        assert known.epoch_of(at) <= epoch


@pytest.mark.parametrize("written", [[4, 100_000], [4, 4 + 2_048, 4 + 2_048], [4, 5], [-1, 1_024]])
def test_what_an_older_state_does_not_know_was_begun_nevertheless(written) -> None:
    """The state alone was put back: batches beyond what it names are no damage."""
    known = EpochHistory()
    known.learn([(epoch, at) for at, epoch in enumerate(written)], newest_epoch=3)
    assert [known.epoch_of(at) for at in range(len(written))] == written
