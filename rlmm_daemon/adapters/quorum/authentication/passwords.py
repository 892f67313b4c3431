"""SCRAM-SHA-256 with passwords in files: verifiers at the server, the password at the client.

A user's name is the last part of a member's: a node's id, or `operator/<name>`.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.mechanisms import NotProven, Proven, Step
from rlmm_daemon.adapters.quorum.authentication.principals import (
    NoPrincipal,
    Principal,
    read_member,
)
from rlmm_daemon.adapters.quorum.authentication.scram import Verifier
from rlmm_daemon.adapters.quorum.authentication.watched import Watched
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret

_USERS_BYTES_MAX: Final = 1 << 20


class Users:
    """Those who prove who they are by a password that is kept as a verifier."""

    mechanism = scram.MECHANISM

    def __init__(self, file: str, now: Callable[[], float] = time.monotonic) -> None:
        """Read them, one a line: `<node id>` or `operator/<name>`, a space, the verifier.

        Raises:
            ConfigError: the file can't be read, or holds something else.
        """
        self._users = Watched((file,), partial(read_users, file), now)
        #: So that a user who is not there looks like one who is.
        self._secret = secrets.token_bytes(32)

    async def proven(self, first: bytes, ask: Step) -> Proven:
        """Return the user who knows the password."""
        users = await self._users.current()
        server = scram.Server(first)
        kept = users.get(server.user)
        final = await ask(server.challenge(kept or self._nobody(server.user)))
        verdict = server.verdict(final)
        if kept is None:
            raise NotProven("a user who is not there")
        return Proven(member=read_member(server.user), verdict=verdict)

    def _nobody(self, user: str) -> Verifier:
        salt = hmac.digest(self._secret, user.encode(), "sha256")
        return Verifier(salt[:16], scram.ITERATIONS, secrets.token_bytes(32), bytes(32))


class Password:
    """One's own."""

    mechanism = scram.MECHANISM
    refused = "a wrong user or password"

    def __init__(self, member: Principal, password: Secret) -> None:
        self._member = member
        self._password = password

    async def prove(self, ask: Step) -> None:
        """Show that it is known, and have the server show that it knows it, too."""
        client = scram.Client(f"{self._member}", self._password.reveal())
        challenge = await ask(client.first)
        proof = await asyncio.to_thread(client.proof, challenge)
        client.check(await ask(proof))


def read_users(path: str) -> Mapping[str, Verifier]:
    """Return the users of a file; ConfigError names a line, and shows nothing of it."""
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(_USERS_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigError(f"{path} can't be read: {why}") from None
    if len(text) > _USERS_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {_USERS_BYTES_MAX} bytes")
    users: dict[str, Verifier] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, kept = line.strip().partition(" ")
        try:
            known = f"{read_member(user)}"
            if known in users:
                raise NotProven("twice")
            users[known] = scram.decode(kept.strip())
        except (NoPrincipal, NotProven):
            raise ConfigError(f"{path}, line {number}: no member with a verifier") from None
    return users
