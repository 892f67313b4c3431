"""Result of a check of `rlmm doctor`."""

from typing import Literal

import msgspec


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check came to, and what to do about it."""

    check: str
    verdict: Literal["ok", "warning", "failed", "skipped"]
    found: str
    advice: str = ""
