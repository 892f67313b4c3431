"""Free ports of the loopback, out of blocks that are one process's until it ends."""  # noqa: INP001 - scripts, no package

import random
import socket
from collections import deque
from pathlib import Path
from typing import Final

_HOST: Final = "127.0.0.1"
#: The kernel gives the ports from the first number on to whoever connects or binds port 0.
_GIVEN: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 10_240
#: No test has so many servers: a port comes round again when those that had it are gone.
_BLOCK: Final = 512
#: By each a block is claimed before other processes that look here.
_claims: Final[list[socket.socket]] = []
#: Of our blocks; the one that was given away longest ago comes first.
_ports: Final[deque[int]] = deque()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, nor gets from the kernel, nor from this function elsewhere.

    So a server that is down finds its own free when it returns. In the kernel's range even its
    peers can take it: one who dials a port of the loopback where nobody listens may be given that
    same port to dial from, and is then connected with itself.
    """
    found: list[int] = []
    looked = 0
    while len(found) < count:
        if looked == len(_ports):
            _ports.extendleft(_block())
            looked = 0
        port = _ports.popleft()
        _ports.append(port)
        looked += 1
        if _is_free(port):
            found.append(port)
    return found


def _block() -> range:
    """Return the ports of a block that was nobody's until now."""
    firsts = list(range(_FIRST, int(_GIVEN.read_text().split()[0]) - _BLOCK + 1, _BLOCK))
    random.shuffle(firsts)
    for first in firsts:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0rlmm-lab-ports-{first}")  # an abstract socket ends with its process
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return range(first, first + _BLOCK)
    raise RuntimeError(f"all blocks of {_BLOCK} ports from {_FIRST} on are taken")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((_HOST, port))
        except OSError:
            return False
    return True
