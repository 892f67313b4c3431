"""Scheduling requests to the kernel on behalf of the event loop."""

import os
import platform
import struct
from typing import Final

#: The least that the kernel takes. A look-up needs less than a third of it.
SLICE_NANOSECONDS: Final = 100_000

#: The call has no name in the C libraries of today.
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
#: struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("IIQiIQQQ")
#: Threads that it starts work longer, and wait like everybody else.
_RESET_ON_FORK: Final = 1


def ask_for_short_slices(thread: int) -> None:
    """Let a thread of this process run soon after it wakes, for short.

    It gets no more of a processor than before: who asks for little at a time comes first among
    those who are owed as much. Without it a look-up waits until whoever copies has used its slice,
    for up to 4 ms on a kernel with 250 ticks a second. Needs no right. Kernels before 6.12 take it
    and do nothing; a thread with another policy than the usual one (CPUSchedulingPolicy= of its
    unit) is left so.

    Raises:
        OSError: the kernel refuses, or its number for this call is not known here.

    Source: sched_setattr(2), and `custom_slice` of Linux's fair scheduler.
    """
    import ctypes  # noqa: PLC0415 - what a start can do without

    if os.sched_getscheduler(thread) != os.SCHED_OTHER:
        return
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        raise OSError(f"the number of sched_setattr on {platform.machine()} is not known")
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    wanted = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NANOSECONDS, 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, thread, ctypes.c_char_p(wanted), 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
