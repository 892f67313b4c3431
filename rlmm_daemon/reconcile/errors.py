"""How a night can end other than well."""

from rlmm_daemon.domain.errors import RlmmError


class ReconcileError(RlmmError):
    """A run that ends without having held storage and log against each other."""


class Refused(ReconcileError):
    """The run may not act, and `reasons` says by which guards; findings were still reported."""

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


class Incomplete(ReconcileError):
    """A part of the input could not be read, so nothing is said about it."""
