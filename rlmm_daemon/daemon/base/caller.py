"""The caller of a request: the broker, bound by its announcements, or an operator, who is not."""

import enum


class Caller(enum.Enum):
    """The gates of readiness bind a broker only: an empty answer makes it reset consumers.

    An operator's request follows the metadata partition on demand and waits for it instead.
    """

    BROKER = "broker"
    OPERATOR = "operator"
