"""What counts as old, and the bounds that no configuration can loosen; no Spark is started."""

from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.config import load
from rlmm_daemon.config.loading import load_reconcile
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Safety
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.reconcile.act.evidence import Ours
from rlmm_daemon.reconcile.night import Run
from tests.reconcile.world import World

HOUR = 3_600_000
NOW = 1_800_000_000_000


def ages_of(
    home: Path, *deadlines: float | None, own_seconds: int = 1_200, grace_hours: int = 24
) -> Ages:
    """Return the ages beside daemons of such copy deadlines; None: a file that can't be read."""
    world = World(home, NOW)
    world.write_log()
    daemon = load(world.write_local(), [f"copy.deadline_seconds={own_seconds}"])
    config = ReconcileConfig(
        output=Output(directory=str(home)), safety=Safety(grace_hours=grace_hours)
    )
    run = Run(None, config, daemon, execute=False, now_ms=NOW, progress=lambda _stage: None)
    presences = {
        f"_rlmm/daemons/{n}.json": None
        if seconds is None
        else msgspec.structs.replace(world.presence(), copy_deadline_seconds=seconds)
        for n, seconds in enumerate(deadlines)
    }
    return run._ages(Ours(marker=None, presences=presences, accepted=frozenset(), manifests={}))


@pytest.mark.parametrize(
    ("deadlines", "grace"),
    [
        ((1_200.0, None), 24 * HOUR),
        ((12 * 3600.0,), 24 * HOUR),
        ((1_200.0, 20 * 3600.0, None, 13 * 3600.0), 40 * HOUR),
    ],
)
def test_grace_is_a_day_or_twice_the_longest_copy_that_any_daemon_allows(
    tmp_path: Path, deadlines: tuple[float | None, ...], grace: int
) -> None:
    found = ages_of(tmp_path, *deadlines)
    assert (found.listed_ms, found.grace_ms) == (NOW, grace)
    longest = max(each for each in deadlines if each is not None)
    assert found.stuck_copy_ms == longest * 1_000 + 120_000


def test_the_daemons_own_configuration_and_a_longer_grace_count_too(tmp_path: Path) -> None:
    assert ages_of(tmp_path / "a", own_seconds=50_000).grace_ms == 100_000_000
    assert ages_of(tmp_path / "b", 20 * 3600.0, grace_hours=72).grace_ms == 72 * HOUR


@pytest.mark.parametrize(
    "loose",
    [
        "grace_hours=23",
        "quarantine_hours=23",
        "share_max=0.02",
        "share_max=0",
        "objects_max=10_001",
        "lease_seconds=29",
        "batch_objects=1_001",
    ],
)
def test_no_bound_can_be_loosened(tmp_path: Path, loose: str) -> None:
    file = tmp_path / "reconcile.toml"
    name = loose.partition("=")[0]
    file.write_text(f'daemon_config = "/etc/rlmm/rlmm.toml"\n[safety]\n{loose}\n')
    with pytest.raises(ConfigError, match=name):
        load_reconcile(file)
    file.write_text('daemon_config = "/etc/rlmm/rlmm.toml"\n[safety]\nshare_max = 0.001\n')
    assert load_reconcile(file).safety == Safety(share_max=0.001)
