"""Checks of `rlmm doctor` on the machine: versions, unit, descriptors, room, owners, time.

Those that ask the daemon are skipped while none runs.
"""

import asyncio
import email.utils
import http.client
import os
import pwd
import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from rlmm_daemon import __version__
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.lock_place import holder_of
from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.config import Config, S3Storage
from rlmm_daemon.config.exposure import Place, owned_places
from rlmm_daemon.core import phrases
from rlmm_daemon.daemon.base.state_directory import LOCK
from rlmm_daemon.domain.errors import DaemonUnreachable, RlmmError
from rlmm_daemon.observability.scrub import scrub
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.offline.support.host import PeerProcess, listener, said

UNIT: Final = "rlmm-daemon.service"
#: A daemon with fewer descriptors refuses connections under load.
DESCRIPTORS_MIN: Final = 4_096
_DESCRIPTORS_SHARE_MAX: Final = 0.8
#: Below the first nothing can be written soon; below the second or a twentieth it is time to act.
FREE_BYTES_MIN: Final = 64 * 1024 * 1024
FREE_BYTES_WANTED: Final = 1024 * 1024 * 1024
_FREE_SHARE: Final = 20
INODES_MIN: Final = 1_000
_STATE_LOCK: Final = "state directory"
_COMMAND_CHARACTERS_MAX: Final = 200
#: How far the storage's clock and this one may be apart: S3 refuses a signature at 15 minutes.
SKEW_SECONDS: Final = 60.0
_SKEW_SECONDS_MAX: Final = 300.0
_PLUGIN: Final = re.compile(r"kafka-plugin(?: ([\w.+-]+))?, Kafka ([\w.+-]+)")
_OPEN_FILES: Final = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)
#: Where an administrator's own copy of a unit stands in front of the package's.
_OWN_UNITS: Final = "/etc/systemd/system/"


T = TypeVar("T")


class Room(NamedTuple):
    """The file system of a directory."""

    path: str
    free: int
    whole: int
    inodes: int


async def host(config: Config, file: str, seconds: float) -> list[CheckResult]:
    """Return a row for each thing of the machine, in the order of how soon it is looked at."""
    peer = await _in_time(lambda: _peer(config), seconds, None)
    status = await _in_time(lambda: _status(config, seconds), 2 * seconds, None) if peer else None
    rooms = await _in_time(lambda: [*_rooms(config)], seconds, None)
    return [
        versions(status, __version__),
        await _in_time(
            lambda: state_lock(config.daemon.state_dir, peer),
            seconds,
            _skipped(_STATE_LOCK, "its disk hangs"),
        ),
        await _in_time(_unit, seconds, _skipped("unit", f"systemd: no answer in {seconds:g} s")),
        _descriptors(peer),
        _skipped("free disk", "a disk or mount hangs") if rooms is None else room(rooms),
        await _in_time(
            lambda: owners(config, file, peer), seconds, _skipped("owners", "a disk hangs")
        ),
        *await _storage_clock(config, seconds),
    ]


async def _in_time(work: Callable[[], T], seconds: float, instead: T) -> T:
    """Return what blocking work comes to; something else where it takes too long.

    The thread is left behind: what it waits for may never answer.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if done.done() else end())

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            failed = error
            tell(lambda: done.set_exception(failed))
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=run, daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            return await done
    except TimeoutError:
        return instead


def _skipped(check: str, found: str) -> CheckResult:
    return CheckResult(check=check, verdict="skipped", found=found)


def state_lock(state_dir: str, peer: PeerProcess | None) -> CheckResult:
    """Judge who holds the state directory: a second daemon on it ends, and is started for ever."""
    holder = holder_of(f"{state_dir}/{LOCK}")
    if holder is None:
        return _skipped(_STATE_LOCK, "no process that can be seen holds the state directory")
    if peer is not None and peer.pid == holder:
        return CheckResult(
            check=_STATE_LOCK, verdict="ok", found=f"held by the daemon that runs, pid {holder}"
        )
    answers = "no daemon answers" if peer is None else f"pid {peer.pid} answers"
    return CheckResult(
        check=_STATE_LOCK,
        verdict="failed",
        found=f"{state_dir} is held by pid {holder} ({_command_of(holder)}), and {answers} on this "
        "configuration's socket: another daemon on that directory ends with exit code 1, and "
        "systemd starts it again and again",
        advice="stop the one that should not run (systemctl disable --now its unit), or give each "
        "its own daemon.state_dir and socket.path; a daemon that was just stopped lets go soon",
    )


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    except OSError:
        return "its command is not to be seen"
    # What stands there may go into a ticket.
    return scrub(words.decode("utf-8", "replace")[:_COMMAND_CHARACTERS_MAX])


# What runs.


def _peer(config: Config) -> PeerProcess | None:
    try:
        return listener(config.socket.path)
    except (DaemonUnreachable, OSError):
        return None


def _status(config: Config, seconds: float) -> Mapping[str, Any] | None:
    options = ClientOptions(client="rlmm doctor", timeout_seconds=seconds)
    try:
        with Client(config.socket.path, options) as client:
            return client.status()
    except RlmmError:
        return None


def versions(status: Mapping[str, Any] | None, ours: str) -> CheckResult:
    """Judge the versions of the daemon that runs and of the broker's plugin beside it."""
    check = "versions"
    if status is None:
        return _skipped(check, f"rlmm {ours}; no daemon answers")
    running, plugins = status["version"], status["broker"].get("plugins", {})
    told, faults = [f"daemon {running}"], list[str]()
    if running != ours:
        faults.append(f"this command is {ours}: restart the daemon to have what is installed")
    for part, client in sorted(plugins.items()):
        match = _PLUGIN.match(client)
        told.append(f"{part} manager {match[1] or 'of an earlier version' if match else client}")
        if match and match[1] != running:
            faults.append(
                f"install the {part} manager's jar of version {running}, and restart the broker "
                "when it suits"
            )
    if not plugins:
        told.append("no plugin is connected")
    return CheckResult(
        check=check,
        verdict="warning" if faults else "ok",
        found=", ".join(told),
        advice="; ".join(dict.fromkeys(faults)),
    )


def _descriptors(peer: PeerProcess | None) -> CheckResult:
    if peer is None:
        return _skipped("descriptors", "no daemon listens")
    try:
        limits = Path(f"/proc/{peer.pid}/limits").read_text(encoding="ascii")
    except OSError as error:
        return _skipped("descriptors", f"of pid {peer.pid}: {error.strerror}")
    is_open = None
    with suppress(OSError):
        is_open = len(list(Path(f"/proc/{peer.pid}/fd").iterdir()))
    found = _OPEN_FILES.search(limits)
    if found is None or found[1] == "unlimited":
        return CheckResult(check="descriptors", verdict="ok", found="no limit")
    return descriptors(int(found[1]), is_open)


def descriptors(most: int, is_open: int | None) -> CheckResult:
    """Judge how many files the daemon may have open; `is_open` is None where that can't be seen."""
    used = "" if is_open is None else f", {is_open:,} are open"
    scarce = is_open is not None and is_open > most * _DESCRIPTORS_SHARE_MAX
    bad = scarce or most < DESCRIPTORS_MIN
    return CheckResult(
        check="descriptors",
        verdict="warning" if bad else "ok",
        found=f"the daemon may have {most:,} files open{used}",
        advice="LimitNOFILE=65536 in its unit, as packaged" if bad else "",
    )


def _unit() -> CheckResult:
    try:
        told = said(
            "systemctl", "show", UNIT, "--no-pager", "-p",
            "LoadState,FragmentPath,NeedDaemonReload,UnitFileState,ActiveState,Result",
        )  # fmt: skip
    except (OSError, TimeoutError) as error:
        return _skipped("unit", f"systemd can't be asked: {error}")
    return unit(dict(line.split("=", 1) for line in told.splitlines() if "=" in line))


def unit(shown: Mapping[str, str]) -> CheckResult:
    """Judge what `systemctl show` says of the daemon's unit."""
    if shown.get("LoadState") != "loaded":
        return _skipped("unit", f"systemd has no {UNIT}: {shown.get('LoadState', 'no answer')}")
    faults = dict[str, str]()
    path = shown.get("FragmentPath", "")
    if path.startswith(_OWN_UNITS):
        faults[f"{path} stands in front of the package's"] = (
            f"move what differs into a drop-in (systemctl edit {UNIT}) and remove that file: an "
            "upgrade does not reach it"
        )
    if shown.get("NeedDaemonReload") == "yes":
        faults["its files changed since systemd read them"] = "systemctl daemon-reload"
    if shown.get("UnitFileState") == "disabled":
        faults["it does not start with the machine"] = f"systemctl enable {UNIT}"
    if shown.get("ActiveState") == "failed":
        faults[f"it failed ({shown.get('Result')})"] = f"journalctl -u {UNIT}"
    return CheckResult(
        check="unit",
        verdict="warning" if faults else "ok",
        found="; ".join(faults) or f"{shown.get('ActiveState')}, {path}",
        advice="; ".join(faults.values()),
    )


# Where it lies.


def _rooms(config: Config) -> Iterator[Room]:
    own = (config.daemon.state_dir, config.event_log_directory, config.cache_directory)
    for path in dict.fromkeys((*own, *config.daemon.log_dirs)):
        with suppress(OSError):  # not made yet, or another check's word
            found = os.statvfs(path)
            yield Room(
                path,
                free=found.f_bavail * found.f_frsize,
                whole=found.f_blocks * found.f_frsize,
                inodes=found.f_favail if found.f_files else INODES_MIN,  # some have no such limit
            )


def room(rooms: Sequence[Room]) -> CheckResult:
    """Judge how much is free where the daemon and its broker write."""
    full = [each for each in rooms if each.free < FREE_BYTES_MIN or each.inodes < INODES_MIN]
    scarce = [
        each for each in rooms if each.free < min(FREE_BYTES_WANTED, each.whole / _FREE_SHARE)
    ]
    shown = full or scarce or sorted(rooms, key=lambda each: each.free)[:1]
    words = "; ".join(
        f"{each.path}: {phrases.size(each.free)} of {phrases.size(each.whole)} free"
        + (f", {each.inodes:,} inodes" if each.inodes < INODES_MIN else "")
        for each in shown
    )
    return CheckResult(
        check="free disk",
        verdict="failed" if full else "warning" if scarce else "ok",
        found=words or "no directory is there yet",
        advice="make room: a full disk takes no events, and a full log directory stops the broker"
        if full or scarce
        else "",
    )


def owners(config: Config, file: str, peer: PeerProcess | None) -> CheckResult:
    """Judge who owns secrets, configuration and own directories: root, or the daemon's user.

    That user is the one who runs it; without a daemon, whoever owns its state directory.
    """
    uid = peer.uid if peer else _uid(config.daemon.state_dir)
    if uid is None:
        return _skipped("owners", "no daemon runs, and there is no state directory yet")
    return owned(owned_places(config, file), uid)


def owned(places: Iterable[Place], uid: int) -> CheckResult:
    """Judge the owners of some places by the daemon's user."""
    others = list[str]()
    for place in dict.fromkeys(places):
        owner = _uid(place.path)
        if owner not in (None, 0, uid):
            others.append(f"{place.path} ({place.key}) is {_name(owner)}'s")
    return CheckResult(
        check="owners",
        verdict="warning" if others else "ok",
        found="; ".join(others) or f"all is root's, or the daemon's user's, {_name(uid)}",
        advice=f"chown to root, or to {_name(uid)}: who owns a file may change it and its mode"
        if others
        else "",
    )


def _uid(path: str) -> int | None:
    try:
        return Path(path).stat().st_uid
    except OSError:
        return None


def _name(uid: int | None) -> str:
    try:
        return pwd.getpwuid(uid if uid is not None else -1).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


# Time.


async def _storage_clock(config: Config, seconds: float) -> list[CheckResult]:
    if not isinstance(config.storage, S3Storage):
        return []  # a directory goes by this machine's own
    return [await _asked_time(config.storage, seconds)]


async def _asked_time(storage: S3Storage, seconds: float) -> CheckResult:
    try:
        apart = await _in_time(lambda: _apart_seconds(storage, seconds), seconds, None)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _skipped("storage clock", f"the storage tells no time: {error}")
    if apart is None:
        return _skipped("storage clock", f"the storage tells no time within {seconds:g} s")
    return storage_time(apart)


def _apart_seconds(storage: S3Storage, seconds: float) -> float | None:
    """Return how far this machine's clock is ahead of the storage's, by the date of any answer.

    Nothing is signed: a wrong clock would have that refused.
    """
    address = urlsplit(
        storage.endpoint or f"https://s3.{storage.region or 'us-east-1'}.amazonaws.com"
    )
    assert address.hostname is not None, "as the configuration was judged"
    connection = (
        http.client.HTTPSConnection(
            address.hostname,
            address.port,
            timeout=seconds,
            context=ssl.create_default_context(cafile=storage.ca_file),
        )
        if address.scheme == "https"
        else http.client.HTTPConnection(address.hostname, address.port, timeout=seconds)
    )
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    if date is None:
        return None
    return SystemClock().now_ms() / 1000 - email.utils.parsedate_to_datetime(date).timestamp()


def storage_time(apart_seconds: float) -> CheckResult:
    """Judge how far this machine's clock is ahead of the storage's; behind it is negative."""
    away, check = abs(apart_seconds), "storage clock"
    if away <= SKEW_SECONDS:
        found = f"within {SKEW_SECONDS:g} s of the storage's"
        return CheckResult(check=check, verdict="ok", found=found)
    side = "ahead of" if apart_seconds > 0 else "behind"
    return CheckResult(
        check=check,
        verdict="warning" if away <= _SKEW_SECONDS_MAX else "failed",
        found=f"this machine's clock is {phrases.duration(away)} {side} the storage's",
        advice="set it right: S3 refuses signatures 15 minutes off, and ages go by it",
    )
