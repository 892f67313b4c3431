"""What one check of `rlmm doctor` came to."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check came to, and what to do about it."""

    check: str
    verdict: Literal["ok", "warning", "failed", "skipped"]
    found: str
    advice: str = ""
