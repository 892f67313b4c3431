"""What every test shares: hypothesis draws the same examples each time unless told otherwise."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("exhaustive", parent=settings.get_profile("ci"), derandomize=False)
settings.register_profile("brief", parent=settings.get_profile("ci"), max_examples=25)
settings.load_profile(os.environ.get("RLMM_HYPOTHESIS", "ci"))


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite", action="store_true", help="write down anew what the commands answer"
    )
