"""The client that every peer is measured with: one blocking Unix socket, frames made beforehand."""

import socket
import statistics
import time
from collections.abc import Sequence

IN_FLIGHT = 64
#: An answer without a result; an error is longer.
ACKNOWLEDGEMENT_BYTES_MAX = 16


def connect(path: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(path)
    except OSError:
        peer.close()
        raise
    return peer


def serial_p50_us(
    peer: socket.socket, questions: Sequence[bytes], answer_bytes_max: int = 65_536
) -> float:
    """Ask one by one; every answer comes in one piece."""
    taken, answer = [], b""
    for question in questions:
        begun = time.perf_counter_ns()
        peer.send(question)
        answer = peer.recv(65_536)
        taken.append(time.perf_counter_ns() - begun)
    assert len(answer) <= answer_bytes_max, answer
    return statistics.median(taken) / 1000


def pipelined_per_second(peer: socket.socket, questions: Sequence[bytes]) -> float:
    """Ask 64 at a time; all answers have one size."""
    peer.send(questions[0])
    size = len(peer.recv(65_536))
    batches = [
        b"".join(questions[at : at + IN_FLIGHT])
        for at in range(0, len(questions) - IN_FLIGHT + 1, IN_FLIGHT)
    ]
    begun = time.perf_counter()
    for batch in batches:
        peer.sendall(batch)
        left = IN_FLIGHT * size
        while left > 0:
            left -= len(peer.recv(262_144))
    return len(batches) * IN_FLIGHT / (time.perf_counter() - begun)


def sliding_per_second(peer: socket.socket, questions: Sequence[bytes]) -> float:
    """Keep 64 requests in flight; each answer lets the next one go. Frames carry their length."""
    begun = time.perf_counter()
    peer.sendall(b"".join(questions[:IN_FLIGHT]))
    sent, answered, held = IN_FLIGHT, 0, b""
    while answered < len(questions):
        held += peer.recv(262_144)
        at = count = 0
        while len(held) - at >= 4 and len(held) - at >= 4 + (
            size := int.from_bytes(held[at : at + 4], "big")
        ):
            assert size <= ACKNOWLEDGEMENT_BYTES_MAX, held[at : at + 4 + size]
            at += 4 + size
            count += 1
        held = held[at:]
        answered += count
        if count and sent < len(questions):
            peer.sendall(b"".join(questions[sent : sent + count]))
            sent += count
    return len(questions) / (time.perf_counter() - begun)
