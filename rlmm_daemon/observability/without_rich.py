"""structlog, imported without rich.

Where rich is installed structlog loads it, a fifth of what a daemon's imports take, for tracebacks
that are never shown that way here: they would show local variables, secrets among them. Whoever
needs rich itself imports it as ever.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """Let the import of a package fail as if it were not installed, unless it is loaded already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment] # which makes its import an ImportError
    try:
        yield
    finally:
        del sys.modules[name]


with _absent("rich"):
    import structlog
    from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["EventDict", "Processor", "WrappedLogger", "structlog"]
