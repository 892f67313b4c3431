"""Commands that work on files, run over the simulated disk and bucket, beside a daemon or without.

Their own code runs: only the disk, the clock and the storage that they open are the simulation's.
"""

import contextlib
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.config import Config, loading
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.offline import answers as files_alone
from rlmm_daemon.offline import (
    log_adoption,
    log_contents,
    log_naming,
    log_readers,
    marker_rebuilding,
    verification,
)
from rlmm_daemon.offline.copying import fencing
from rlmm_daemon.ports.event_log import LogMissing
from rlmm_daemon.wiring import adapters, log_alone
from tests.simulation.disk import SimDisk
from tests.simulation.operators.bucket import JudgedStorage, World
from tests.simulation.operators.daemon import (
    BROKER_DIRECTORY,
    CLUSTER,
    LOG_DIRECTORY,
    STATE_DIRECTORY,
)
from tests.simulation.operators.truth import BROKER, LAYOUT
from tests.simulation.world import Life

if TYPE_CHECKING:
    from tests.simulation.operators.daemon import Daemon

CONFIG: Final = f"""
[daemon]
broker_id = {BROKER}
cluster_id = "{CLUSTER}"
state_dir = "{STATE_DIRECTORY}"
log_dirs = ["{BROKER_DIRECTORY}"]
[event_log]
kind = "embedded"
single_broker = true
directory = "{LOG_DIRECTORY}"
[storage]
kind = "local"
directory = "/bucket"
"""


def config() -> Config:
    """Return what every command is given."""
    return loading.parse(CONFIG)


class _Disk(SimDisk):
    """A disk of a process that is not the daemon's, but dies with the machine."""

    def close(self) -> None:
        """Do nothing: there are no threads."""


class _Log(EmbeddedLog):
    """A log of a process that dies with the machine, and closes nothing then."""

    def __init__(self, life: Life, **given: Any) -> None:
        super().__init__(**given)
        self._life = life

    async def close(self) -> None:
        """Close it, unless there is nobody any more who could."""
        if self._life.alive:
            await super().close()


@contextlib.contextmanager
def simulated(life: Life, world: World) -> Iterator[None]:
    """Give whatever opens a disk, a clock, a storage or a log those of the simulation."""

    def disk() -> SimDisk:
        calm = life.disk.faults.calm()
        return _Disk(life.disk.platter, life.loop, life.rng("offline disk"), calm)

    def luck() -> random.Random:
        """Replayed with the seed, and not the same for two logs that are made."""
        return life.rng(f"offline at {life.loop.time()}")

    def storage_of(*_: Any, **__: Any) -> adapters.Storage:
        backend = JudgedStorage(world, life, faults=False, name="offline storage")
        return adapters.Storage(backend, Bucket(backend, layout=LAYOUT, rng=life.rng("offline")))

    def log_of(
        _config: Any, disk: Any, clock: Any, _: Any, spawn: Any, **_more: Any
    ) -> EmbeddedLog:
        return _Log(
            life,
            disk=disk,
            clock=clock,
            spawn=spawn,
            luck=luck(),
            directory=_config.event_log.directory,
            partition_count=_config.event_log.partition_count,
            cluster_id=CLUSTER,
        )

    with contextlib.ExitStack() as stack:
        for module in (files_alone, log_adoption, log_alone, log_naming, log_readers, verification):
            stack.enter_context(mock.patch.object(module, "LocalDisk", disk))
        # Tasks begin in the order in which they were made; not on the simulated loop.
        stack.enter_context(mock.patch.object(log_contents, "_IN_FLIGHT", 1))
        stack.enter_context(mock.patch.object(files_alone, "random", SimpleNamespace(Random=luck)))
        # Whose files they are is the real disk's affair.
        stack.enter_context(mock.patch("os.geteuid", return_value=1))
        for module in (fencing, files_alone, log_alone, marker_rebuilding):
            stack.enter_context(mock.patch.object(module, "SystemClock", return_value=life.clock))
        stack.enter_context(mock.patch.object(adapters, "storage_of", storage_of))
        stack.enter_context(mock.patch.object(adapters, "event_log_of", log_of))
        yield


async def name_log(*, execute: bool) -> Any:
    """`rlmm log name`, beside a daemon that waits for the name."""
    return await log_naming._named(config(), execute=execute)


async def rebuild_marker(daemon: "Daemon", *, execute: bool) -> Any:
    """`rlmm storage rebuild-marker`, beside the daemon."""
    del daemon
    try:
        return await marker_rebuilding._run(config(), {}, execute=execute)
    except* LogMissing as errors:  # as `run` has it
        raise InvalidArgument(str(errors.exceptions[0])) from errors
