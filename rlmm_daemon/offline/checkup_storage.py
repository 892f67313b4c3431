"""Checks of `rlmm doctor` that ask the storage: its marker, holds, and our broker id."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from rlmm_daemon.adapters.os.lock_place import place_of
from rlmm_daemon.codec.marker import (
    PRESENCE_PREFIX,
    BucketMarker,
    Hold,
    Presence,
    decode_presence,
    presence_key,
)
from rlmm_daemon.config import Config
from rlmm_daemon.core import phrases
from rlmm_daemon.core.readiness.marker_verdict import IF_NONE, REBUILD, why_remade
from rlmm_daemon.core.storage.layout import SEGMENT_KEY
from rlmm_daemon.core.storage.pace import SLOW_SECONDS
from rlmm_daemon.daemon.base.state_directory import LOCK
from rlmm_daemon.daemon.bucket.presence_files import present
from rlmm_daemon.domain.errors import Malformed, RlmmError, StorageUnavailable
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.offline.verification import kept_marker, rows_of
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.wiring import adapters

#: Objects that are looked at for how old they are.
OBJECTS_MAX: Final = 1_000
#: How far the clocks of storage and daemons may be apart.
SKEW_MS: Final = 300_000
_CHECK = "bucket marker"
_BROKER_ID = "broker id"
_PRESENCE = "presence files"


_UNREAD: Final = (
    "run: rlmm storage doctor, which asks the storage step by step and names what is wrong"
)


async def marker(config: Config, seconds: float) -> list[CheckResult]:
    """Hold the marker against this cluster and the daemon's copy; nothing without a storage."""
    made = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if made is None:
        return []
    took = 0.0
    try:
        async with asyncio.timeout(seconds):
            began = time.monotonic()
            await made.backend.open()
            took = time.monotonic() - began
            present = await made.bucket.peek()
            holds = present.held if present else ()
            ages = await _ages(made.backend) if holds else []
            other = await _other_daemon(made.backend, config)
            other += await _presences(made.backend)
        kept, unread = await _copy(config)
        judged = _judged(config, made.bucket.name, present, kept)
        return [judged, *unread, *copied(holds, ages), *other, *slow(took)]
    except TimeoutError:
        silent = f"no answer within {seconds:g} s" if not took else f"not read within {seconds:g} s"
        judged = CheckResult(check=_CHECK, verdict="failed", found=silent, advice=_UNREAD)
        return [judged, *slow(took)]
    except RlmmError as error:
        found = error.message
        return [CheckResult(check=_CHECK, verdict="failed", found=found, advice=_UNREAD)]
    finally:
        await made.backend.close()


def slow(seconds: float) -> list[CheckResult]:
    """Return a warning if an answer of the storage takes so long; nothing otherwise."""
    if seconds < SLOW_SECONDS:
        return []
    return [
        CheckResult(
            check="storage",
            verdict="warning",
            found=f"it answers, and takes {seconds:.1f} s for it: it is slow",
            advice="look at the way to it (network, proxy, name service) and at its own health; "
            "copies and reads go on, later. Nothing has to be done here once it is quick again",
        )
    ]


async def _copy(config: Config) -> tuple[BucketMarker | None, list[CheckResult]]:
    try:
        return await kept_marker(config), []
    except Malformed as damage:
        advice = (
            "put it back from a copy before the next start: a daemon that can't read it holds all "
            "objects (rlmm partition end-hold --all --execute ends that)"
        )
        return None, [
            CheckResult(check=_CHECK, verdict="warning", found=damage.message, advice=advice)
        ]


async def _ages(storage: RemoteStorage) -> list[int]:
    """Return when the storage took some objects of segments."""
    found = list[int]()
    async with aclosing(storage.list("")) as pages:
        async for page in pages:
            found += [row.modified_ms for row in page if SEGMENT_KEY.search(row.key)]
            if len(found) >= OBJECTS_MAX:
                break
    return found


def copied(holds: Sequence[Hold], ages_ms: Sequence[int]) -> list[CheckResult]:
    """Return a warning if no object is as old as a hold; nothing otherwise."""
    before_ms = min((hold.before_ms for hold in holds), default=None)
    if before_ms is None or not ages_ms or min(ages_ms) <= before_ms + SKEW_MS:
        return []
    return [
        CheckResult(
            check="holds",
            verdict="warning",
            found=f"of the first {phrases.number(len(ages_ms), 'object')} none is as old as the "
            f"hold of {phrases.moment(before_ms)}: the bucket looks copied",
            advice="of copies begun by a clock that was ahead, holds go by the storage's times, "
            "which a copy does not keep: rlmm log recover N --execute, then "
            "rlmm partition end-hold (docs/recovery.md)",
        )
    ]


def _judged(
    config: Config, name: str, present: BucketMarker | None, kept: BucketMarker | None
) -> CheckResult:
    ours = config.daemon.cluster_id
    if present is None:
        if kept is None:
            return CheckResult(check=_CHECK, verdict="ok", found="none yet: a first start makes it")
        found = f"there is none in {name}; the daemon knew {len(kept.layouts)} layouts"
        return CheckResult(check=_CHECK, verdict="failed", found=found, advice=IF_NONE)
    if ours not in (None, present.cluster_id):
        found = f"of cluster {present.cluster_id}, daemon.cluster_id is {ours}"
        advice = "give each cluster a bucket or directory of its own"
        return CheckResult(check=_CHECK, verdict="failed", found=found, advice=advice)
    if kept is not None and (why := why_remade(rows_of(kept), rows_of(present))) is not None:
        return _failed(f"another one than the daemon knew: {why}")
    found = phrases.number(len(present.layouts), "layout")
    if present.held:
        holds = phrases.number(len(present.held), "hold")
        found += f", {holds} on what was stored (rlmm partition end-hold --all shows them)"
    return CheckResult(check=_CHECK, verdict="ok", found=found)


async def _other_daemon(storage: RemoteStorage, config: Config) -> list[CheckResult]:
    """Tell what the presence file says of another daemon under our broker id."""
    control = await storage.get_control(presence_key(config.daemon.broker_id))
    if control is None:
        return []
    try:
        presence = decode_presence(control.data)
    except Malformed:
        return []  # `_presences` tells of that
    return other_daemon(presence, place_of(f"{config.daemon.state_dir}/{LOCK}"))


async def _presences(storage: RemoteStorage) -> list[CheckResult]:
    """Tell which presence files can't be read, or that nobody may see which there are."""
    try:
        unread = (await present(storage)).unread
    except StorageUnavailable as error:
        if error.fields.get("reason") != "denied":
            raise
        return [
            CheckResult(
                check=_PRESENCE,
                verdict="warning",
                found=f"{PRESENCE_PREFIX} can't be listed: {error.message}",
                advice="allow the listing (rlmm storage doctor says how): files of brokers that "
                "the cluster does not name are not seen, so what their daemons had read of the "
                "event log may be lost unnoticed",
            )
        ]
    if not unread:
        return []
    return [
        CheckResult(
            check=_PRESENCE,
            verdict="failed",
            found=f"{', '.join(sorted(unread))} can't be read: how far their daemons had read the "
            "event log nobody knows",
            advice="a daemon of another broker that runs writes its own anew within a minute; "
            "else put a copy back, or type what rlmm explain names",
        )
    ]


def other_daemon(presence: Presence, place: str) -> list[CheckResult]:
    """Judge a presence file; `place` names the lock of our state directory, "" if not known.

    Nothing while our daemon is alone, has written it, or may write it any moment.
    """
    who = f"broker {presence.broker_id}"
    if presence.other is not None:
        met = presence.other.met
        return [
            CheckResult(
                check=_BROKER_ID,
                verdict="failed" if met else "warning",
                found=f"beside {presence.host} another daemon {'runs' if met else 'may run'} as "
                f"{who}: {presence.other.who}; neither deletes anything",
                advice="stop one of the two, or mend its daemon.broker_id"
                if met
                else "none: if it does not show, deletes go on within two minutes",
            )
        ]
    if presence.ended or not place or not presence.place or presence.place == place:
        return []
    return [
        CheckResult(
            check=_BROKER_ID,
            verdict="warning",
            found=f"the presence file of {who} is the one of {presence.host}, as of "
            f"{phrases.moment(presence.written_at_ms)}; a daemon that runs here has not written "
            "it, and deletes nothing",
            advice="none for the first two minutes of a start. If it stays so, the storage refuses "
            "that write: rlmm status says why, rlmm storage doctor what is denied; once it is "
            "taken, deletes go on by themselves",
        )
    ]


def _failed(found: str) -> CheckResult:
    advice = f"restore it, or run: {REBUILD}"
    return CheckResult(check=_CHECK, verdict="failed", found=found, advice=advice)
