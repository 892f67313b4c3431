"""`python -m tests.benchmarks.s3 --profile`: where the processor time of our transfers goes.

Each client does each piece of work once, its event loop's thread sampled (`sampling`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

#: What `s3_ours` prints.
Figures = Mapping[str, Any]
FUNCTIONS: Final = 8


def show(
    console: Console, title: str, found: Mapping[str, Figures], *, times: float, each: str
) -> None:
    """Print what each of `times` pieces costs each client."""
    table = Table(title=f"{title}: ms of processor time for each {each}", title_justify="left")
    table.add_column("where")
    for client in found:
        table.add_column(client, justify="right")

    def row(name: str, of: Callable[[Figures], float]) -> None:
        table.add_row(name, *(f"{1000 * of(figures) / times:.2f}" for figures in found.values()))

    packages = {client: _by_package(figures) for client, figures in found.items()}
    names = {name for each in packages.values() for name in each}
    for name in sorted(names, key=lambda name: -sum(each[name] for each in packages.values())):
        parts = [f"{1000 * each[name] / times:.2f}" for each in packages.values()]
        table.add_row(name, *parts)
    table.add_section()
    row("the event loop's thread", lambda figures: figures["loop"])
    row(
        "other threads: read, hash, files",
        lambda figures: figures["cpu"] - figures["loop"] - figures["sampler"],
    )
    row("both", lambda figures: figures["cpu"] - figures["sampler"])
    row("time it took", lambda figures: figures["seconds"])
    console.print(table)
    for client, figures in found.items():
        console.print(f"Of {client}, what took longest, with what is built in:")
        by_function = sorted(figures["samples"].items(), key=lambda row: -row[1])
        for name, seconds in by_function[:FUNCTIONS]:
            console.print(
                f"  {1000 * seconds / times:8.2f}  {name.split(chr(9))[1]}", highlight=False
            )


def _by_package(figures: Figures) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, seconds in figures["samples"].items():
        found[name.split("\t")[0]] += seconds
    return found
