"""Connections of bytes between the daemon and the brokers, with delays and cuts drawn by seed.

Bytes never overtake each other; they may come in pieces, half of an answer may be all that comes,
and what was sent may still be carried out after the daemon that sent it is dead.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.simulation.kafka.broker import Broker
from tests.simulation.kafka.cluster import PORT, Cluster
from tests.simulation.loop import SimLoop

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """Probabilities, per answer unless said; delays in virtual seconds."""

    delay_seconds: float = 0.001
    #: An answer comes in two pieces.
    split: float = 0.0
    #: The connection is lost: before the request arrives, before the answer, or in the middle.
    cut: float = 0.0
    #: Nothing comes any more, and nobody says so.
    silence: float = 0.0
    #: Per connection: refused.
    refuse: float = 0.0


class Network:
    """What one life of the daemon is connected by."""

    def __init__(
        self,
        loop: SimLoop,
        cluster: Cluster,
        rng: random.Random,
        faults: NetworkFaults,
        *,
        produce_by_id: bool,
    ) -> None:
        self.loop = loop
        self.cluster = cluster
        self.rng = rng
        self.faults = faults
        self.brokers = {
            number: Broker(cluster, number, produce_by_id=produce_by_id) for number in cluster.nodes
        }
        self.open: dict[int, Line] = {}
        self.made = 0
        self.injected: dict[str, int] = {}

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], _host: str, port: int
    ) -> tuple["Line", asyncio.BaseProtocol]:
        """Return a connection to the broker of that port, as `loop.create_connection` does."""
        node = self.cluster.nodes[port - PORT]
        await asyncio.sleep(self.delay())
        refused = self.hits("refuse")
        if not node.alive or refused:
            raise ConnectionRefusedError(111, "refused")
        protocol = factory()
        self.made += 1
        line = Line(self, self.made, node.number, protocol)
        self.open[self.made] = line
        protocol.connection_made(line)
        return line, protocol

    def delay(self) -> float:
        return self.rng.expovariate(1 / self.faults.delay_seconds)

    def hits(self, fault: str) -> bool:
        """Draw whether a fault happens now; drawn even where it is switched off."""
        hit = bool(self.rng.random() < getattr(self.faults, fault))
        if hit:
            self.injected[fault] = self.injected.get(fault, 0) + 1
        return hit

    def broken(self, number: int) -> None:
        """A broker died: every connection to it is reset."""
        for line in list(self.open.values()):
            if line.node == number:
                line.reset()

    def end(self) -> None:
        """The daemon is dead: nothing is heard; what is on its way may still be carried out."""
        for line in list(self.open.values()):
            line.outlive()
        self.open.clear()


class Line(asyncio.Transport):
    """One connection, both ends of it."""

    def __init__(
        self, network: Network, number: int, node: int, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self.node = node
        self._network = network
        self._number = number
        self._protocol: Any = protocol
        self._closing = False
        self._silent = False
        self._sent_until = self._heard_until = 0.0
        #: Sent, not arrived; and arrived, not carried out: a broker takes one after the other.
        self._sent: deque[bytes] = deque()
        #: On its way to the client, in order; None is the connection's loss.
        self._coming: deque[bytes | None] = deque()
        self._buffer = b""
        self._requests: deque[bytes] = deque()
        self._serving = False

    # -- what the client does --

    def write(self, data: Any) -> None:
        if self._closing:
            return
        loop = self._network.loop
        self._sent_until = max(self._sent_until, loop.time() + self._network.delay())
        self._sent.append(bytes(data))
        loop.call_at(self._sent_until, self._arrive)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        self._hang_up(None)

    abort = close

    def reset(self) -> None:
        """The connection is lost: whoever waits for an answer hears of that."""
        self._hang_up(ConnectionResetError(104, "reset"))

    def _hang_up(self, why: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._network.open.pop(self._number, None)
            self._network.loop.call_soon(self._protocol.connection_lost, why)

    def outlive(self) -> None:
        """The client is dead; its requests may yet arrive, now or much later."""
        rng, cluster = self._network.rng, self._network.cluster
        self._closing = True
        reader = self._protocol._stream_reader
        if reader is not None:
            reader._buffer.clear()
            reader.feed_eof()
        frames, self._buffer = _frames(self._buffer + b"".join(self._sent))
        broker = self._network.brokers[self.node]
        for frame in [*self._requests, *frames]:
            if rng.random() < 0.5:
                cluster.after(rng.choice([0.0, 0.5, 20.0]), partial(_carry_out, broker, frame))

    # -- what the broker does --

    def _arrive(self) -> None:
        network = self._network
        data = self._sent.popleft()
        if network.hits("silence"):
            self._silent = True
        if not network.cluster.nodes[self.node].alive or self._silent:
            return
        frames, self._buffer = _frames(self._buffer + data)
        self._requests.extend(frames)
        self._serve()

    def _serve(self) -> None:
        node = self._network.cluster.nodes[self.node]
        if self._serving or not self._requests or not node.alive:
            return
        if node.frozen:
            self._network.loop.call_later(0.5, self._serve)
            return
        if self._network.hits("cut"):
            if self._network.rng.random() < 0.5:
                self.reset()  # what was asked is never carried out
                return
            self._network.brokers[self.node].answer(self._requests.popleft(), lambda _: None)
            self.reset()
            return
        self._serving = True
        self._network.brokers[self.node].answer(self._requests.popleft(), self._answered)

    def _answered(self, body: bytes) -> None:
        network, loop = self._network, self._network.loop
        self._serving = False
        if self._closing:
            return
        frame = len(body).to_bytes(_LENGTH_BYTES, "big") + body
        half = network.rng.randint(1, len(frame) - 1)
        if network.hits("cut"):
            self._deliver(frame[:half], loop.time() + network.delay())
            self._deliver(None, loop.time())
        elif network.hits("split"):
            self._deliver(frame[:half], loop.time() + network.delay())
            self._deliver(frame[half:], loop.time() + network.delay() * 10)
        else:
            self._deliver(frame, loop.time() + network.delay())
        if self._requests:
            loop.call_soon(self._serve)

    def _deliver(self, data: bytes | None, when: float) -> None:
        self._heard_until = max(self._heard_until, when)
        self._coming.append(data)
        # Timers of one moment have no order, so each takes whatever is next.
        self._network.loop.call_at(self._heard_until, self._hear)

    def _hear(self) -> None:
        data = self._coming.popleft()
        if self._closing or self._silent:
            return
        if data is None:
            self.reset()
        else:
            self._protocol.data_received(data)


def _frames(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole frames of a buffer, and what is left of it."""
    found = []
    while len(buffer) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
        if len(buffer) < end:
            break
        found.append(buffer[_LENGTH_BYTES:end])
        buffer = buffer[end:]
    return found, buffer


def _carry_out(broker: Broker, frame: bytes) -> None:
    if broker.cluster.nodes[broker.number].works:
        broker.answer(frame, lambda _: None)
