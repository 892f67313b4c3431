"""Pages of docs/ whose tables are made from the code, and the tables of each.

A page is written by hand around its tables: what stands between `<!-- made: NAME -->` and
`<!-- /made -->` is made. `python -m tests.docs.pages` writes all of them anew, which is what
`make docs-tables` does.
"""

import re
import sys
from collections.abc import Callable, Mapping
from typing import Final

from tests.docs import alarms, cli, configuration, metrics, protocol, runbook
from tests.fault_day import faults
from tests.support.daemon_process import REPOSITORY

DOCS: Final = REPOSITORY / "docs"
#: Page -> the names of its tables, and what makes each.
PAGES: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "configuration.md": {"daemon": configuration.daemon, "nightly": configuration.nightly},
    "cli.md": {"help": cli.helps},
    "metrics.md": {"metrics": metrics.tables},
    "alerts.md": {"alerts": alarms.sections},
    "fault-day.md": {"faults": faults.rows},
    "runbook.md": {"failures": runbook.failures, "others": runbook.others},
    "protocol.md": {
        "methods": protocol.methods,
        "codes": protocol.codes,
        "structs": protocol.structs,
    },
}
_MADE: Final = re.compile(
    r"(?P<begin><!-- made: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- /made -->)", re.DOTALL
)


def current(page: str) -> str:
    """Return the page's text with its tables as the code has them now."""
    makers = PAGES[page]

    def made(found: re.Match[str]) -> str:
        return f"{found['begin']}\n{makers[found['name']]()}\n\n{found['end']}"

    return _MADE.sub(made, (DOCS / page).read_text())


def tables(page: str) -> list[str]:
    """Return the names of the tables that the page asks for."""
    return [found["name"] for found in _MADE.finditer((DOCS / page).read_text())]


def write(page: str) -> bool:
    """Write the page's tables anew; returns whether any changed."""
    file = DOCS / page
    fresh = current(page)
    changed = file.read_text() != fresh
    file.write_text(fresh)
    return changed


if __name__ == "__main__":
    changed = [page for page in PAGES if write(page)]
    sys.stdout.write(f"written: {', '.join(changed) or 'nothing, all were current'}\n")
