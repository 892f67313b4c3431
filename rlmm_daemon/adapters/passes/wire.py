"""What the daemon and the process for copies say to each other: JSON, a message in a packet.

    to it, control socket     a Job, with the descriptors [the pass's socket, source, target]
    from it, control socket   READY, once
    from it, pass's socket    {"moved": bytes}, now and then
                              and at last, perhaps with the rest of "moved", one of
                              {"done": {"written", "read"} or {"found"}}
                              {"error": [code, message, fields]}    one of ours
                              {"errno": number}                     the target's disk
                              {"bug": text}                         its traceback is on stderr

Either side ends a pass, and the process, by closing the socket.
"""

from typing import Any, Final

READY: Final = b"ready"
#: Beyond what an error with all its fields needs.
MESSAGE_BYTES_MAX: Final = 64 * 1024

#: "do" is "copy", with "reads", or "check", with "claims": [start, end, size] or None; and "size",
#: the source's.
Job = dict[str, Any]
