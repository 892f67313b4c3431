"""A quorum's replica beside a broker: its keys, and who formats which directory on which host."""

import ipaddress
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.codec.kraft.small_files import META_PROPERTIES
from rlmm_daemon.config import Config, QuorumLog
from rlmm_daemon.core.raft.voters import Endpoint, Voter, VoterSet
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.offline.quorum_format import log_id

SECTION: Final = "event_log.quorum"
SECURITY: Final = f"{SECTION}.security"


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator says of a replica and of its quorum."""

    #: Where it listens; None: where the list of voters or the configuration has it.
    listen: Endpoint | None = None
    #: The first voters; none where they are formatted already.
    voters: tuple[Voter, ...] = ()
    #: Whether directory ids of theirs were drawn just now.
    drawn: bool = False
    #: Files, by keys of `[event_log.quorum.security]`.
    proof: dict[str, str] = msgspec.field(default_factory=dict)


def settings(node_id: int, replica: Replica, home: str) -> dict[str, Any]:
    """Return dotted keys and their values; beyond loopback certificates are expected in `home`."""
    found: dict[str, Any] = {}
    addresses = {each.key.id: each.endpoints[0] for each in replica.voters}
    listen = replica.listen or addresses.pop(node_id, None)
    if listen is not None:
        found[f"{SECTION}.listen"] = _address(listen)
    others = [at for number, at in addresses.items() if number != node_id]
    if others:
        found[f"{SECTION}.bootstrap"] = [_address(each) for each in others]
    proof = dict(replica.proof)
    if not proof and listen is not None and not _is_loopback(listen.host):
        proof = {
            "ca_file": f"{home}/quorum-ca.pem",
            "certificate_file": f"{home}/quorum.pem",
            "key_file": f"{home}/quorum.key",
        }
    return found | {f"{SECURITY}.{key}": value for key, value in proof.items()}


def left(config: Config, replica: Replica) -> Iterator[str]:
    """Say who formats what, until this replica's directory is formatted."""
    chosen, directory = config.event_log, config.quorum_directory
    if not isinstance(chosen, QuorumLog) or Path(directory, META_PROPERTIES).exists():
        return
    cluster_id, number = str(config.daemon.cluster_id), config.daemon.broker_id
    command = f"rlmm quorum format {shlex.quote(directory)} --cluster-id {shlex.quote(cluster_id)}"
    voters = replica.voters
    if not voters:
        yield (
            f"{command} --node-id {number}, with the first voters (--voter), alone (--standalone "
            f"--listen {chosen.quorum.listen}), or joining those that are there (--join); "
            "docs/quorum.md"
        )
        return
    words = " ".join(f"--voter {_voter(each)}" for each in voters)
    if number not in {each.key.id for each in voters}:
        topic_id = uuid_text(log_id(cluster_id, VoterSet.of(voters)))
        yield (
            f"once the first voters run: {command} --node-id {number} --join --topic-id "
            f"{topic_id} --execute"
        )
        return
    if replica.drawn:
        yield f"say the same list on the other hosts, ids were drawn: rlmm setup ... {words}"
    for each in voters:
        here = "this host" if each.key.id == number else each.endpoints[0].host
        yield f"on {here}: {command} --node-id {each.key.id} {words} --execute"


def secrets(config: QuorumLog) -> list[str | None]:
    """Return files that somebody puts there."""
    security, brokers = config.quorum.security, config.quorum.brokers
    of_brokers = (
        []
        if brokers is None
        else [
            brokers.security.password_file,
            brokers.security.ca_file,
            brokers.security.certificate_file,
            brokers.security.key_file,
            brokers.security.key_password_file,
        ]
    )
    return [
        security.ca_file,
        security.certificate_file,
        security.key_file,
        security.users_file,
        security.password_file,
        security.token_keys_file,
        security.token_file,
        *of_brokers,
    ]


def _voter(voter: Voter) -> str:
    at, key = voter.endpoints[0], voter.key
    return f"{key.id}@{_address(at)}:{uuid_text(key.directory)}"


def _address(at: Endpoint) -> str:
    return f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: nobody knows what it will mean
