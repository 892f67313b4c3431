"""Questions of a quorum's member to its leader: in this process, or over the wire.

A member's replica knows the leader and its address: nobody has to be asked for them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from rlmm_daemon.adapters.quorum.links import Unreachable
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.submitting import Record
from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.messages import Code
from rlmm_daemon.core.raft.roles import Follower
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import NotLeader, OutcomeUnknown, StorageUnavailable

#: It certainly did nothing.
_NOT_DONE: Final = frozenset(
    {Code.NOT_LEADER_OR_FOLLOWER, Code.INVALID_REQUEST, Code.INCONSISTENT_CLUSTER_ID}
)


class ToLeader:
    """The leader, from one replica's side."""

    def __init__(self, node: Node, *, timeout_seconds: float) -> None:
        """`timeout_seconds`: a leader in this process has no more time than one elsewhere."""
        self._node = node
        self._timeout_seconds = timeout_seconds

    async def submit(self, records: Sequence[Record]) -> int:
        """Append records; return the offset of the first one, once they are committed.

        Raises:
            StorageUnavailable: nobody took them: they are not in the log.
            OutcomeUnknown: they may be, now or later.
        """
        if self._leads:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await self._node.submit(records)
            except NotLeader as error:
                raise StorageUnavailable(error.message) from error
            except TimeoutError as error:
                raise OutcomeUnknown("most voters did not have them in time") from error
        packed = tuple({"Key": key, "Value": value} for key, value in records)
        base: int = (await self._call(apis.SUBMIT, {"Records": packed}))["BaseOffset"]
        return base

    async def read_index(self) -> int:
        """Return an end below which all lies that was acknowledged before this call.

        Raises:
            StorageUnavailable: nobody can say.
        """
        if self._leads:
            try:
                return await self._node.read_index()
            except NotLeader as error:
                raise StorageUnavailable(error.message) from error
        try:
            end: int = (await self._call(apis.READ_INDEX, {}))["EndOffset"]
        except OutcomeUnknown as error:  # it changes nothing
            raise StorageUnavailable(error.message) from error
        return end

    @property
    def _leads(self) -> bool:
        return self._node.replica.leader == self._node.replica.me.id

    async def _call(self, api: Api, asked: Message) -> Message:
        leader, endpoints = self._known()
        group = self._node.links.group
        named = {"ClusterId": group.cluster_id, "TopicId": group.topic_id}
        try:
            answer = await self._node.links.call(api, asked | named, endpoints, leader)
        except Unreachable as error:
            raise OutcomeUnknown(f"replica {leader}, which leads: {error}") from error
        code = answer["ErrorCode"]
        if code == Code.NONE:
            return answer
        said = f"replica {leader}: {Code(code).name.lower() if code in _CODES else code}"
        raise StorageUnavailable(said) if code in _NOT_DONE else OutcomeUnknown(said)

    def _known(self) -> tuple[int, tuple[Endpoint, ...]]:
        replica = self._node.replica
        leader = replica.leader
        if leader is None:
            raise StorageUnavailable("no leader of the quorum is known")
        voter = replica.in_force.find(leader)
        told = replica.role.endpoints if isinstance(replica.role, Follower) else ()
        return leader, told or (voter.endpoints if voter is not None else ())


_CODES: Final = frozenset(Code)
