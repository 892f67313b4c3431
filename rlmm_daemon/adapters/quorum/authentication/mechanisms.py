"""Ways to prove by SASL who one is, from a client's first token to the server's last."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from rlmm_daemon.adapters.quorum.authentication.principals import Principal


class NotProven(Exception):
    """The other side does not know the secret, or does not speak this mechanism."""


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a client has proven to be."""

    member: Principal
    #: What convinces the client in turn.
    verdict: bytes = b""
    #: In seconds since 1970: from then on it has proven nothing.
    expires_at: float | None = None


#: Sends a token and returns the one that answers it.
Step = Callable[[bytes], Awaitable[bytes]]


class Believer(Protocol):
    """A server's side."""

    @property
    def mechanism(self) -> str:
        """Its name in SASL's registry."""

    async def proven(self, first: bytes, ask: Step) -> Proven:
        """Return who the client is whose first token this is; NotProven: nobody knows."""


class Speaker(Protocol):
    """A client's side."""

    @property
    def mechanism(self) -> str:
        """Its name in SASL's registry."""

    @property
    def refused(self) -> str:
        """Say what is wrong where the server does not believe it."""

    async def prove(self, ask: Step) -> None:
        """Convince the server, and be convinced.

        Raises:
            NotProven: the server does not prove what it has to.
            OSError: a file with one's own secret can't be read.
        """
