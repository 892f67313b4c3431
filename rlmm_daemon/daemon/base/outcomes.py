"""Outcomes of work in one word each, for metrics and the audit."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlmm_daemon.domain.errors import RlmmError


@contextmanager
def outcome_told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell how the block ended: `ok`, `cancelled`, an error's wire name, or `internal_error`."""
    outcome = "internal_error"
    try:
        yield
        outcome = "ok"
    except RlmmError as error:
        outcome = error.wire_name()
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        tell(outcome)
