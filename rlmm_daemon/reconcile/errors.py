"""How a night can end other than well."""

from rlmm_daemon.domain.errors import RlmmError


class Incomplete(RlmmError):
    """A part of the input could not be read, so nothing is said about it."""
