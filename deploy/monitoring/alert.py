"""The shape of an alert: its rule, its words, and a fault on which it has to fire."""

import re
from typing import Final, Literal

import msgspec

#: Between two samples of a test, and two evaluations: closer ones only take longer.
STEP_MINUTES: Final = 5
#: A fault begins after so many minutes of a good life.
CALM_MINUTES: Final = 20
#: Longest window of a rate, and what a fault lasts beyond `lasting`.
MARGIN_MINUTES: Final = 70
DAY_MINUTES: Final = 24 * 60
_CALM: Final = CALM_MINUTES // STEP_MINUTES
_AFTER: Final = 2 * DAY_MINUTES // STEP_MINUTES
_MINUTES: Final = {"m": 1, "h": 60, "d": DAY_MINUTES}


class Level(msgspec.Struct, frozen=True):
    """A gauge that leaves its good value while the fault lasts."""

    series: str
    bad: float = 1
    good: float = 0

    def values(self, minutes: int) -> str:
        """Return a value each step, in promtool's notation, up to two days after the fault."""
        return (
            f"{self.good:g}x{_CALM - 1} {self.bad:g}x{minutes // STEP_MINUTES - 1} "
            f"{self.good:g}x{_AFTER}"
        )


class Growth(msgspec.Struct, frozen=True):
    """A counter that grows while the fault lasts."""

    series: str
    by_minute: float = 1

    def values(self, minutes: int) -> str:
        """Return a value each step, as `Level.values`."""
        each = self.by_minute * STEP_MINUTES
        steps = minutes // STEP_MINUTES
        return f"0x{_CALM - 1} {each:g}+{each:g}x{steps - 1} {each * steps:g}x{_AFTER}"


Fault = tuple[Level | Growth, ...]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, and what an operator who was woken by it has to know."""

    name: str
    #: The metric that it is about, beside which `docs/metrics.md` shows it.
    metric: str
    expr: str
    #: How long that has to hold, as Prometheus writes it.
    lasting: str = "0m"
    #: `page` wakes somebody; `ticket` waits for the morning.
    severity: Literal["page", "ticket"] = "ticket"
    #: What is wrong, and what to type first.
    because: str
    #: What is safe meanwhile, and what is not.
    meanwhile: str
    #: What ends it.
    ends: str
    fault: Fault
    #: Labels of the alert in the test; by default those of the fault's first series.
    labels: dict[str, str] | None = None

    @property
    def minutes(self) -> int:
        """How long the fault of the test lasts."""
        number, unit = self.lasting[:-1], self.lasting[-1]
        return int(number) * _MINUTES[unit] + MARGIN_MINUTES

    @property
    def anchor(self) -> str:
        """Its section in `docs/alerts.md`."""
        return self.name.lower()


def labels_of(series: str) -> dict[str, str]:
    """Return the labels of a series, without its name."""
    return dict(re.findall(r'(\w+)="([^"]*)"', series))
