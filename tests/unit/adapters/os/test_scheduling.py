import ctypes
import os
import platform
import struct
import threading

import pytest

from rlmm_daemon.adapters.os.scheduling import SLICE_NANOSECONDS, ask_for_short_slices

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
FIELDS = struct.Struct("IIQiIQQQ")
RELEASE = tuple(int(part) for part in platform.release().split(".")[:2])

pytestmark = [
    pytest.mark.skipif(platform.machine() not in SCHED_GETATTR, reason="another processor"),
    pytest.mark.skipif(RELEASE < (6, 12), reason="the kernel has slices of one length"),
]


def seen():
    """Return nice, flags and slice of the thread that asks."""
    buffer = ctypes.create_string_buffer(FIELDS.size)
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.syscall(SCHED_GETATTR[platform.machine()], 0, buffer, FIELDS.size, 0)
    _, _, flags, nice, _, runtime, _, _ = FIELDS.unpack(buffer.raw)
    return nice, flags, runtime


def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_gets_a_short_slice_and_keeps_its_niceness():
    def work():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        ask_for_short_slices(threading.get_native_id())
        return seen()

    nice, _, runtime = in_a_thread(work)
    assert (nice, runtime) == (3, SLICE_NANOSECONDS)


def test_what_it_starts_does_not():
    usual = in_a_thread(seen)[2]

    def work():
        ask_for_short_slices(threading.get_native_id())
        return in_a_thread(seen)[2]

    assert in_a_thread(work) == usual != SLICE_NANOSECONDS


def test_another_policy_is_left():
    def work():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        ask_for_short_slices(threading.get_native_id())
        return os.sched_getscheduler(0)

    assert in_a_thread(work) == os.SCHED_BATCH


def test_says_why_not(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="pdp11"):
        ask_for_short_slices(threading.get_native_id())
    monkeypatch.undo()
    with pytest.raises(OSError, match="No such process"):
        ask_for_short_slices(2**22 - 1)
