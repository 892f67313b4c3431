"""The page at the admin port, put together."""

import asyncio

from rlmm_daemon.adapters import peers
from rlmm_daemon.config import Config
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.admin import PageRoom
from rlmm_daemon.daemon.operator.forecasting import Forecasts
from rlmm_daemon.daemon.operator.page.answers import Answers
from rlmm_daemon.daemon.operator.page.events import EventAnswers
from rlmm_daemon.daemon.operator.page.files import files
from rlmm_daemon.daemon.operator.page.fleet import Fleet, FleetAnswers
from rlmm_daemon.daemon.operator.page.forecast import ForecastAnswers
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.daemon.operator.topics import Topics
from rlmm_daemon.daemon.reading.fetcher import Fetcher
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.observability.recent import RECENT
from rlmm_daemon.wiring import adapters


def page_room(
    config: Config,
    manager: Manager,
    standing: Standing,
    topics: Topics,
    *,
    copier: Copier,
    fetcher: Fetcher | None,
    removals: Report | None,
    metrics: Metrics,
    fleet: Fleet,
    forecasts: Forecasts,
    jobs: asyncio.TaskGroup,
) -> PageRoom:
    """Return what the admin port shows a browser."""
    now_ms = manager.clock.now_ms
    answers = Answers(
        manager,
        standing,
        topics,
        copier=copier,
        metrics=metrics,
        removals=removals,
        fetched=lambda: {} if fetcher is None else fetcher.bytes_by_topic,
    )
    return PageRoom(
        answers={
            **files(),
            **answers.paths(),
            **EventAnswers(RECENT.rows, now_ms).paths(),
            **FleetAnswers(answers.own, fleet, now_ms).paths(),
            **ForecastAnswers(forecasts, topics, manager.clock).paths(),
        },
        spawn=lambda work, name: jobs.create_task(work, name=name),
        names=config.admin.hosts,
    )


def fleet_of(config: Config, manager: Manager) -> Fleet:
    """Return the peers that the page shows beside this daemon."""
    return Fleet(config.admin.peers, peers.ask, manager.clock, manager.bugs)


def forecasts_of(
    config: Config,
    manager: Manager,
    copier: Copier,
    *,
    fetcher: Fetcher | None,
    storage: adapters.Storage | None,
) -> Forecasts:
    """Return the forecasts of topics."""
    s3 = adapters.s3_of(config, storage)
    return Forecasts(
        manager,
        copier=copier,
        prices=config.prices,
        requests=s3.traffic if s3 else None,
        fetched=lambda: {} if fetcher is None else fetcher.bytes_by_topic,
    )
