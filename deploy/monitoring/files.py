"""Files of this directory that are made, and what makes each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deploy.monitoring import dashboard, rules

DIRECTORY: Final = Path(__file__).parent
FILES: Final[Mapping[str, Callable[[], str]]] = {
    rules.RULES: rules.rules,
    rules.TESTS: rules.tests,
    dashboard.DASHBOARD: dashboard.dashboard,
}
