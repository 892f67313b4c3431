"""View of the remote storage that people are given, from all that knows of it."""

from collections.abc import Callable

from rlmm_daemon.config import Config
from rlmm_daemon.core.explain.facts import LastError
from rlmm_daemon.daemon.bucket.storage_keeper import StorageKeeper
from rlmm_daemon.daemon.operator.facts import StorageView
from rlmm_daemon.daemon.operator.standing import storage_kind
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.storage import Traffic


def storage_view_of(
    config: Config,
    keeper: StorageKeeper | None,
    traffic: Callable[[], Traffic] | None,
    clock: Clock,
) -> Callable[[], StorageView]:
    """Return what gives the view as of now; `traffic` is S3's."""
    kind = storage_kind(config)

    def view() -> StorageView:
        if keeper is None:
            return StorageView(kind=kind)
        told = None if traffic is None else traffic()
        return StorageView(
            kind=kind,
            error=keeper.trouble() or _silence(told, clock.now_ms()),
            other_daemon=keeper.other_daemon(),
            holds=keeper.holds(),
            answer_seconds=0.0 if told is None else told.answer_seconds,
        )

    return view


def _silence(traffic: Traffic | None, now_ms: int) -> LastError | None:
    silence = None if traffic is None else traffic.silence
    if silence is None:
        return None
    at_ms = now_ms - round(1000 * silence.seconds)
    return LastError(message=silence.message, at_ms=at_ms, consecutive=silence.calls)
