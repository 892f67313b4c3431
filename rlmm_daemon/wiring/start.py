"""Steps of a start that wait for another: the log, the bucket, the cluster's name, a first word."""

import asyncio
import threading
from contextlib import suppress

import structlog

from rlmm_daemon import __version__
from rlmm_daemon.adapters.os import scheduling
from rlmm_daemon.config import (
    Config,
    KafkaLog,
    LocalStorage,
    NoStorage,
    QuorumLog,
    S3Storage,
    Storage,
)
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterView
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.admin import AdminServer, Ready
from rlmm_daemon.daemon.socket.server import Server
from rlmm_daemon.domain.errors import NotReady, RlmmError

logger = structlog.get_logger(__name__)

#: A request that comes with the start waits so long for the bucket's marker; see `_until_open`.
_MARKER_SECONDS = 2.0
#: And so long for the event log, whose brokers may be away for hours.
_LOG_SECONDS = 10.0
#: Of a broker that connects at once, and its first answers.
_START_IS_OVER_SECONDS = 1.0
#: What the admin port waits for the log.
_OPEN_SECONDS = 1.0
#: And then for a broker's first words. A time: no condition says whether one is about to connect.
_FIRST_WORDS_SECONDS = 0.2
_ADMIN_AGAIN_SECONDS = 1.0
_READY_LOOK_SECONDS = 0.2


def tell_start(config: Config) -> None:
    """Say who starts, and where all of it is: the first line of a daemon's life."""
    daemon, log, storage = config.daemon, config.event_log, config.storage
    match log:
        case KafkaLog(kafka=kafka):
            at: object = kafka.bootstrap
        case QuorumLog():
            at = config.quorum_directory
        case _:
            at = config.event_log_directory
    logger.info(
        "starting",
        version=__version__,
        broker_id=daemon.broker_id,
        cluster_id=daemon.cluster_id,
        event_log=log.__struct_config__.tag,
        event_log_at=at,
        storage=storage.__struct_config__.tag,
        storage_at=_place(storage),
        socket=config.socket.path,
        admin=config.admin.listen or None,
        state_dir=daemon.state_dir,
    )


def _place(storage: Storage) -> str | None:
    match storage:
        case LocalStorage():
            return storage.directory
        case S3Storage():
            return f"{storage.bucket} at {storage.endpoint or storage.region or 'AWS'}"
        case NoStorage():
            return None


async def tell_ready(manager: Manager) -> None:
    """Say once that every question is answered: the log is open, all that is followed is ready."""
    began = manager.clock.monotonic()
    while True:
        await asyncio.sleep(_READY_LOOK_SECONDS)
        if readiness(manager).ready:
            logger.info(
                "ready",
                seconds=round(manager.clock.monotonic() - began, 3),
                metadata_partitions=len(manager.followed()),
                announced=len(manager.assignment.announced),
            )
            return


async def name_known_cluster(server: Server, manager: Manager) -> None:
    """Tell the server the cluster that the state directory is bound to; a restart need not ask."""
    with suppress(OSError, RlmmError):  # whatever is wrong with it, opening the log will tell
        known = await manager.state.identity()
        if known is not None and known.cluster_id is not None:
            server.identify(known.cluster_id)


async def name_cluster(server: Server, manager: Manager) -> None:
    """Tell the server which cluster this is, where only the brokers know; it waits for that."""
    while (identity := manager.fleet.identity) is None:
        await manager.fleet.changed.wait()
    if identity.cluster_id is not None:
        server.identify(identity.cluster_id)


async def serve_admin(admin: AdminServer, manager: Manager) -> None:
    """Serve the admin port in a moment: a broker's first words come first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_OPEN_SECONDS):
            await manager.gates.until_open()
    await asyncio.sleep(_FIRST_WORDS_SECONDS)
    while True:
        try:
            await admin.serve()
        except OSError as error:  # out of descriptors: they may be given back
            logger.warning("admin port not served yet", error=str(error))
            await asyncio.sleep(_ADMIN_AGAIN_SECONDS)
        else:
            return


async def keep_view(view: ClusterView, manager: Manager) -> None:
    """Ask the cluster for ever, once the log that says which cluster it is has opened."""
    await manager.gates.until_open()
    await view.run()


async def ask_for_short_slices() -> None:
    """Ask when the start is over: it costs more to load than it saves then."""
    loop_thread = threading.get_native_id()
    await asyncio.sleep(_START_IS_OVER_SECONDS)
    try:
        await asyncio.to_thread(scheduling.ask_for_short_slices, loop_thread)
    except (OSError, ImportError, MemoryError) as error:  # ctypes in a process that is locked down
        logger.info("no short slices: look-ups wait for other work", error=str(error))


async def until_open(manager: Manager, bucket: Bucket | None) -> None:
    """Return once log and bucket are known; one that is away is waited for only briefly.

    Raises:
        NotReady: the log is not open by then; it says why.
    """
    try:
        async with asyncio.timeout(_LOG_SECONDS):
            await manager.gates.until_open()
    except TimeoutError as error:
        raise NotReady(log_trouble(manager) or "the log opened late", state="starting") from error
    if bucket is not None and manager.fleet.identity is not None:
        await bucket.until_judged(_MARKER_SECONDS)


def log_trouble(manager: Manager) -> str | None:
    """Return why the event log is not open, in words; None once it is."""
    fleet = manager.fleet
    return None if fleet.follow_set is not None else f"the event log is not open: {fleet.trouble}"


def readiness(manager: Manager) -> Ready:
    """`/readyz`: the log is open and every followed metadata partition is ready."""
    states = {str(f.partition): f.state.value for f in manager.followed()}
    opened = manager.fleet.identity is not None and manager.fleet.whole_failure is None
    ready = opened and all(state == "ready" for state in states.values())
    return Ready(
        ready=ready, facts={"log": str(manager.fleet.trouble or "open"), "partitions": states}
    )
