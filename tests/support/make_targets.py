"""Targets of the Makefile and of what it includes."""

import re

from tests.support.daemon_process import REPOSITORY


def make_targets() -> set[str]:
    """Return the names that can be typed after `make`."""
    files = [REPOSITORY / "Makefile", *(REPOSITORY / "make").glob("*.mk")]
    return {
        name
        for file in files
        for name in re.findall(r"^([a-z0-9-]+):(?!=)", file.read_text(), re.MULTILINE)
    }
