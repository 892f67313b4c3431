"""Facts of the event log, as its kind has them: connections, a quorum's role, refused writes."""

from collections.abc import Mapping
from typing import Any

from rlmm_daemon.config import Config
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.wiring import adapters


def log_facts(
    config: Config, log: EventLog, controllers: adapters.Controllers | None
) -> Mapping[str, Any]:
    """Return what status and explain tell of the log, as `Standing` asks for it."""
    if (kafka := adapters.kafka_log_of(config, log)) is not None:
        return {**kafka.facts(), "controllers": controllers and controllers.facts()}
    if (quorum := adapters.as_quorum_log(config, log)) is not None:
        return {"quorum": quorum.facts(), "leaderless": quorum.refusal}
    return {"unwritable": adapters.refusal_of(log)}
