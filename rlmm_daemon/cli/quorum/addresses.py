"""Addresses and voters as they are typed, and the options that several commands share."""

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import UUID_BYTES, uuid_bytes, uuid_text

#: The listener under whose name replicas tell each other their addresses.
LISTENER: Final = "QUORUM"
_PORT_MAX: Final = 65_535


def endpoint_of(text: str) -> Endpoint:
    """Return the address that HOST:PORT names; an IPv6 host may stand in brackets.

    Raises:
        InvalidArgument: it names none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise InvalidArgument(f"{text!r} is not HOST:PORT, for example 10.0.0.1:9393")
    if not 0 < int(port) <= _PORT_MAX:
        raise InvalidArgument(f"{text!r}: a port is 1 to {_PORT_MAX}")
    return Endpoint(LISTENER, host, int(port))


def voter_of(text: str) -> Voter:
    """Return the voter that ID@HOST:PORT:DIRECTORY_ID names, Kafka's own form.

    Raises:
        InvalidArgument: it names none.
    """
    node_id, at, rest = text.partition("@")
    address, colon, directory = rest.rpartition(":")
    if not at or not colon or not (node_id.isascii() and node_id.isdecimal()):
        raise InvalidArgument(f"{text!r} is not ID@HOST:PORT:DIRECTORY_ID")
    key = ReplicaKey(int(node_id), uuid_bytes(directory))
    return Voter(key, (endpoint_of(address),))


def drawn_voter_of(text: str) -> tuple[Voter, bool]:
    """Return the voter of ID@HOST:PORT[:DIRECTORY_ID], and whether its directory's id was drawn.

    Raises:
        InvalidArgument: it names none.
    """
    port = text.rpartition(":")[2]
    if port.isdecimal() and len(port) <= len(str(_PORT_MAX)):
        return voter_of(f"{text}:{uuid_text(os.urandom(UUID_BYTES))}"), True
    return voter_of(text), False


class _Typed(click.ParamType[Any]):
    """A value that one of the functions above reads."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return it; wrong usage if it is none."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)


ADDRESS: Final = _Typed("HOST:PORT", endpoint_of)
VOTER: Final = _Typed("VOTER", voter_of)
DRAWN_VOTER: Final = _Typed("VOTER", drawn_voter_of)
UUID: Final = _Typed("ID", uuid_bytes)


class Quorum(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, and how."""

    servers: tuple[Endpoint, ...]
    timeout_seconds: float
    proof: dict[str, Any]


def quorum_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--server`, `--timeout` and the proof's, passed on together as `quorum: Quorum`."""

    @click.option(
        "--server",
        "servers",
        type=ADDRESS,
        required=True,
        multiple=True,
        metavar="HOST:PORT",
        help="A replica of the quorum; repeatable. Any one that runs names the others.",
    )
    @click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Give up after so long.",
    )
    @click.option(
        "--user", metavar="NAME", help="The operator whose password --password-file holds."
    )
    @proof_options
    @functools.wraps(command)
    def with_quorum(
        *args: Any,
        servers: tuple[Endpoint, ...],
        timeout_seconds: float,
        user: str | None,
        proof: dict[str, Any],
        **kwargs: Any,
    ) -> Any:
        proof |= {"user": user}
        quorum = Quorum(servers=servers, timeout_seconds=timeout_seconds, proof=proof)
        return command(*args, quorum=quorum, **kwargs)

    return with_quorum


def proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says how a member proves who it is, passed on together as `proof`."""

    @click.option("--ca", "ca_file", metavar="FILE", help="The quorum's authority, in PEM.")
    @click.option(
        "--certificate",
        "certificate_file",
        metavar="FILE",
        help="One's own, which names rlmm://CLUSTER_ID/NODE_ID, or .../operator/NAME.",
    )
    @click.option("--key", "key_file", metavar="FILE", help="Of the certificate.")
    @click.option(
        "--password-file",
        metavar="FILE",
        help="Prove by SCRAM-SHA-256 with the password in it, where replicas have --users.",
    )
    @click.option(
        "--token-file",
        metavar="FILE",
        help="Prove by the signed token in it (OAUTHBEARER), where replicas have --token-keys.",
    )
    @click.option(
        "--insecure",
        is_flag=True,
        help="Speak in the clear beyond loopback: whoever reaches the port may vote.",
    )
    @functools.wraps(command)
    def with_proof(*args: Any, **kwargs: Any) -> Any:
        proof = {name: kwargs.pop(name) for name in _OF_PROOF}
        return command(*args, proof=proof, **kwargs)

    return with_proof


_OF_PROOF: Final = (
    "ca_file",
    "certificate_file",
    "key_file",
    "password_file",
    "token_file",
    "insecure",
)
