"""Free ports of the loopback, each this process's until it ends."""  # noqa: INP001 - scripts, no package

import random
import socket
from pathlib import Path
from typing import Final

_HOST: Final = "127.0.0.1"
#: The kernel gives the ports from the first number on to whoever connects or binds port 0.
_GIVEN: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 10_240
#: By each a port is claimed before other processes that look here.
_claims: Final[list[socket.socket]] = []


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, nor gets from the kernel, nor from this function elsewhere.

    So a server that is down finds its own free when it returns. In the kernel's range even its
    peers can take it: one who dials a port of the loopback where nobody listens may be given that
    same port to dial from, and is then connected with itself.
    """
    end = int(_GIVEN.read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(_FIRST, end), end - _FIRST):
        if len(found) == count:
            return found
        if (claim := _claimed(port)) is None:
            continue
        _claims.append(claim)
        if _is_free(port):
            found.append(port)
    raise RuntimeError(f"no {count} free ports between {_FIRST} and {end}")


def _claimed(port: int) -> socket.socket | None:
    """Return what holds the claim if nobody else does; an abstract socket ends with its process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0rlmm-lab-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((_HOST, port))
        except OSError:
            return False
    return True
