"""Recovery of what a log lost, put together: it needs a bucket to look in."""

from rlmm_daemon.config import Config
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.recovering import Recovery, RecoveryOptions
from rlmm_daemon.ports.clock import Clock


def recovery_of(
    config: Config, manager: Manager, copier: Copier, *, bucket: Bucket | None, clock: Clock
) -> Recovery | None:
    """Return who looks in the bucket for it; None without a storage."""
    if bucket is None:
        return None
    delivery_seconds = manager.fleet.options.delivery_timeout_seconds
    return Recovery(
        manager,
        bucket,
        RecoveryOptions(
            broker_id=config.daemon.broker_id,
            started_at_ms=clock.now_ms(),
            patience_ms=round(1000 * (config.copy.deadline_seconds + delivery_seconds)),
        ),
        is_running=copier.is_running,
    )
