"""A measured figure beside its peer and its budget, and how many of them are shown and kept."""

import statistics
from collections.abc import Sequence

import msgspec
from rich.table import Table

from tests.benchmarks.stolen import SHARE_MAX


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = 5
    small_segments: int = 1_000
    large_segments: int = 100_000
    lookups: int = 10_000
    writes: int = 400
    writes_in_flight: int = 20_000
    copy_bytes: int = 1024 * 1024 * 1024
    copy_rounds: int = 3
    ranges: int = 20
    small_copies: int = 40
    announced: int = 10_000

    @classmethod
    def quick(cls) -> "Scale":
        return cls(
            rounds=1,
            small_segments=50,
            large_segments=500,
            lookups=200,
            writes=20,
            writes_in_flight=200,
            copy_bytes=32 * 1024 * 1024,
            copy_rounds=1,
            ranges=2,
            small_copies=4,
            announced=200,
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    what: str
    value: float | None
    unit: str
    peer: str = ""
    peer_value: float | None = None
    #: Ours against the peer's, as the budget puts it.
    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    #: At most so much, whatever the peer needs.
    limit: float | None = None
    note: str = ""
    #: The share of the processors that the host took meanwhile, where somebody looked.
    stolen: float | None = None

    @property
    def budget(self) -> str:
        if self.limit is not None:
            return f"<= {self.limit:g} {self.unit}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}x"
        if self.at_least is None:
            return ""
        return f">= {self.at_least:g}{'x' if self.ratio is not None else ' ' + self.unit}"

    @property
    def met(self) -> bool | None:
        """None where there is no budget, or nothing to hold it against."""
        if self.limit is not None:
            return None if self.value is None else self.value <= self.limit
        measured = self.value if self.ratio is None else self.ratio
        if measured is None or (self.at_most is None and self.at_least is None):
            return None
        if self.at_most is not None:
            return self.ratio is not None and measured <= self.at_most
        assert self.at_least is not None
        return measured >= self.at_least


def table(rows: Sequence[Row]) -> Table:
    shown = Table(title="Benchmarks", title_justify="left")
    for heading in ("what", "measured", "peer", "of the peer", "ratio", "budget", ""):
        right = heading in {"measured", "of the peer", "ratio", "budget"}
        shown.add_column(heading, justify="right" if right else "left")
    group = None
    for row in rows:
        if group not in {None, row.group}:
            shown.add_section()
        group = row.group
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row.met]
        if row.stolen is not None and row.stolen > SHARE_MAX:
            verdict += f"[yellow], but the host took {row.stolen:.0%}[/]"
        what = f"{row.what} [dim]({row.note})[/]" if row.note else row.what
        shown.add_row(
            what, _amount(row.value, row.unit), row.peer, _amount(row.peer_value, row.unit),
            ratio, row.budget, verdict,
        )  # fmt: skip
    return shown


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
