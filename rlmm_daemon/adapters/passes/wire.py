"""Messages between the daemon and the process for copies: JSON, a message in a packet.

    to it, control socket     a Job, with the descriptors [the pass's socket, source, target]
    from it, control socket   READY, once
    from it, pass's socket    {"moved": bytes}, at once, which says that it was taken, and now
                              and then; at last, perhaps with the rest of "moved", one of
                              {"done": {"written", "read"} or {"found"}}
                              {"error": [code, message, fields]}    one of ours
                              {"errno": number}                     the system's, of the target
                              {"bug": text}                         its traceback is on stderr

Either side ends a pass, and the process, by closing the socket.
"""

from typing import Any, Final

from rlmm_daemon import __version__

READY: Final = f"ready {__version__}".encode()
#: Beyond what an error with all its fields needs.
MESSAGE_BYTES_MAX: Final = 64 * 1024

#: "do" is "copy", with "reads", or "check", with "claims": [start, end, size] or None; and "size",
#: the source's.
Job = dict[str, Any]
#: How many files come with a Job.
FILES: Final = {"copy": 2, "check": 1}
