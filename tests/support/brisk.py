"""A daemon that asks again sooner: for tests that wait for what it notices by itself.

What it asks for every few seconds it asks for several times a second, and it waits less for a
storage that is away. Nothing else of it changes, and no test asserts how long any of it takes.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from tests.support.fork_server import Forked, Launch

#: Set in a daemon's environment.
VARIABLE: Final = "BRISK"
_AGAIN_SECONDS: Final = 0.1
_AWAY_SECONDS: Final = 1.0


def brisk(forks: Callable[[Launch], Forked]) -> Callable[[Launch], Forked]:
    """Return what starts such daemons."""

    def spawn(launch: Launch) -> Forked:
        return forks(replace(launch, environment={**launch.environment, VARIABLE: "1"}))

    return spawn


def install() -> None:
    """Shorten the pauses, before the daemon is made."""
    from rlmm_daemon.adapters.event_log.embedded import EmbeddedOptions  # noqa: PLC0415
    from rlmm_daemon.daemon.bucket import storage_keeper  # noqa: PLC0415 - of the fork, as below
    from rlmm_daemon.daemon.cleaner import purge  # noqa: PLC0415
    from rlmm_daemon.daemon.copying import removal  # noqa: PLC0415
    from rlmm_daemon.daemon.following import known_log  # noqa: PLC0415
    from rlmm_daemon.daemon.operator import recovering  # noqa: PLC0415
    from rlmm_daemon.wiring import adapters, start  # noqa: PLC0415

    for module, name, seconds in (
        (storage_keeper, "_REFUSED_SECONDS", _AGAIN_SECONDS),
        (known_log, "_RETRY_SECONDS_MAX", _AGAIN_SECONDS),
        (recovering, "MARKER_SECONDS", _AWAY_SECONDS),
        (removal, "MARKER_SECONDS", _AWAY_SECONDS),
        (purge, "MARKER_SECONDS", _AWAY_SECONDS),
        (start, "_MARKER_SECONDS", _AWAY_SECONDS),
    ):
        assert hasattr(module, name)
        setattr(module, name, seconds)
    heard = partial(EmbeddedOptions, heartbeat_seconds=_AGAIN_SECONDS)
    setattr(adapters, "EmbeddedOptions", heard)  # noqa: B010 - a class for type checkers
