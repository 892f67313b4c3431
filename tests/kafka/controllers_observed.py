"""One real node whose controllers' listener takes TLS and a password, and makes many snapshots."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka.cluster import PASSWORDS, Cluster
from rlmm_daemon.adapters.controllers.dialer import KafkaDialer
from rlmm_daemon.adapters.controllers.observer import ControllersObserver, connecting
from rlmm_daemon.adapters.kafka.connection.security import load_security
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import KafkaSecurity
from rlmm_daemon.core.cluster_image.word import ControllersState, ControllersWord
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.ids import TopicId
from tests.kafka.rig import until

SECONDS: Final = 60.0
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_PROTOCOLS: Final = (
    "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,TLS:SSL,MTLS:SSL,"
    "SASL:SASL_PLAINTEXT,SASLTLS:SASL_SSL"
)


def secured() -> dict[str, str]:
    """Properties of a node whose controller knows its users."""
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    own = f'username="admin" password="{PASSWORDS["admin"]}"'
    return {
        "listener.security.protocol.map": _PROTOCOLS,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": f"{_PLAIN} {own} {users};",
        "metadata.log.max.record.bytes.between.snapshots": "500",
    }


def security(
    cluster: Cluster,
    home: Path,
    *,
    mechanism: str = "PLAIN",
    password: str = PASSWORDS["rlmm"],
) -> KafkaSecurity:
    """Return what the user rlmm logs in with over TLS."""
    file = home / "rlmm.password"
    file.write_text(password)
    file.chmod(0o600)
    return KafkaSecurity(
        protocol="SASL_SSL",
        ca_file=str(cluster.key_directory / "ca.pem"),
        mechanism=mechanism,  # type: ignore[arg-type]  # one of those that the tests name
        username="rlmm",
        password_file=str(file),
    )


def controllers(cluster: Cluster) -> tuple[Endpoint, ...]:
    ports = (node.ports["CONTROLLER"] for node in cluster.nodes.values())
    return tuple(Endpoint("CONTROLLER", "127.0.0.1", port) for port in ports)


@asynccontextmanager
async def observing(
    cluster: Cluster,
    settings: KafkaSecurity,
    *,
    cluster_id: Callable[[], Awaitable[str]] | None = None,
) -> AsyncIterator[ControllersObserver]:
    """An observer that runs."""

    async def ours() -> str:
        return cluster.cluster_id

    observer = ControllersObserver(
        controllers(cluster),
        connecting(KafkaDialer(lambda: load_security(settings))),
        cluster_id or ours,
        clock=SystemClock(),
        rng=random.Random(1),
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(observer.run())
        try:
            yield observer
        finally:
            task.cancel()


async def standing(observer: ControllersObserver, wanted: ControllersState) -> None:
    """Wait until following stands so."""
    what = f"the controllers are {wanted.value}"
    await until(lambda: observer.following.standing is wanted, SECONDS, what)


async def word(observer: ControllersObserver, *topic_ids: TopicId) -> ControllersWord:
    """Return the controllers' word, which has to come."""
    cluster_id = observer.following.cluster_id or ""
    found = await observer.word(topic_ids, SystemClock().monotonic(), cluster_id=cluster_id)
    assert found is not None, observer.observed()
    return found
