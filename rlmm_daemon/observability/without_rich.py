"""structlog, imported without rich.

Where rich is installed structlog loads it, a fifth of what a daemon's imports take, for tracebacks
that are never shown that way here: they would show local variables, secrets among them. Whoever
needs rich itself imports it as ever.
"""

import sys

_LOADED = "rich" in sys.modules
if not _LOADED:
    sys.modules["rich"] = None  # type: ignore[assignment] # which makes its import an ImportError

import structlog  # noqa: E402
from structlog.typing import EventDict, Processor, WrappedLogger  # noqa: E402

if not _LOADED:
    del sys.modules["rich"]

__all__ = ["EventDict", "Processor", "WrappedLogger", "structlog"]
