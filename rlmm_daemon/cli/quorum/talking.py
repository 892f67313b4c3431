"""Questions that commands ask a quorum's leader, each in a loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.cli.quorum.addresses import Quorum
from rlmm_daemon.domain.errors import DaemonUnreachable, StorageUnavailable
from rlmm_daemon.wiring.quorum import asking
from rlmm_daemon.wiring.quorum_proof import Proof

T = TypeVar("T")


def ask(quorum: Quorum, question: Callable[[QuorumClient], Awaitable[T]]) -> tuple[str, T]:
    """Return the quorum's cluster, and what its leader answered; Ctrl-C ends it quietly.

    Raises:
        DaemonUnreachable: no leader answers in time; nothing was changed.
        OutcomeUnknown: a change was asked for, and its answer is lost.
        InvalidArgument: the leader refused it.
    """

    async def asked() -> tuple[str, T]:
        cluster_id, client = await asking(
            quorum.servers, timeout_seconds=quorum.timeout_seconds, proof=Proof(**quorum.proof)
        )
        return cluster_id, await question(client)

    try:
        return asyncio.run(asked())
    except StorageUnavailable as error:
        raise DaemonUnreachable(error.message) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def described(quorum: Quorum) -> tuple[str, Description]:
    """Return the quorum's cluster, and what its leader knows; errors as of `ask`."""
    return ask(quorum, QuorumClient.describe)
