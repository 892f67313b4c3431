"""Buckets of histograms that several groups of metrics share."""

from typing import Final

#: 100 us to 10 s: a durable append, a look-up that was held, a pause of the loop.
FAST_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip
