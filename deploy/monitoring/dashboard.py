"""The dashboard for Grafana: rows of panels, and the JSON that Grafana imports."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

DASHBOARD: Final = "rlmm.dashboard.json"
#: Of Grafana's dashboard model, which 10 and later read.
SCHEMA_VERSION: Final = 39
_WIDTH: Final = 24
_HEIGHT: Final = 7
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


#: By the kind of a panel. Grafana's schema wants each, though Grafana itself takes defaults.
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "graphMode": "none",
        "colorMode": "value",
        "justifyMode": "auto",
        "textMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "orientation": "auto",
    },
}


class Query(msgspec.Struct, frozen=True):
    """One curve or one number, and its legend."""

    expr: str
    legend: str = "{{instance}}"


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """What a panel shows, and how to read it."""

    title: str
    said: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    #: Its metrics move only beside S3, or after a fault.
    may_be_empty: bool = False


def _rate(metric: str, by: str, labels: str = "") -> str:
    chosen = f'instance=~"$instance"{labels}'
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"


def _level(metric: str, by: str = "instance", labels: str = "") -> str:
    return f'sum by ({by}) ({metric}{{instance=~"$instance"{labels}}})'


def _quantile(quantile: float, metric: str, by: str = "instance") -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_bucket', f'le, {by}')})"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Is it well": (
        Panel(
            title="Daemons that answer everything",
            said="Ready ones. Fewer than there are brokers: see the alerts.",
            queries=(Query('sum(rlmm_ready{instance=~"$instance"})', "ready"),),
            kind="stat",
            width=4,
        ),
        Panel(
            title="Metadata partitions by state",
            said="All ready in a good hour. A failed one answers nothing.",
            queries=(Query(_level("rlmm_metadata_partitions", "state"), "{{state}}"),),
            width=8,
        ),
        Panel(
            title="Refusals and bugs",
            said="Requests that were not ok, and bugs. Level 0 is well.",
            queries=(
                Query(_rate("rlmm_requests_total", "outcome", ',outcome!="ok"'), "{{outcome}}"),
                Query(_rate("rlmm_internal_errors_total", "where"), "bug in {{where}}"),
            ),
            unit="reqps",
            width=8,
            may_be_empty=True,
        ),
        Panel(
            title="Version",
            said="During an upgrade there are two.",
            queries=(Query("count by (version) (rlmm_build_info)", "{{version}}"),),
            kind="stat",
            width=4,
        ),
    ),
    "What is tiered": (
        Panel(
            title="Bytes by topic",
            said="A topic's size is the largest that a daemon knows of: daemons share a log.",
            queries=(
                Query('max by (topic) (rlmm_topic_bytes{instance=~"$instance"})', "{{topic}}"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Segments by topic",
            said="Finished ones.",
            queries=(
                Query('max by (topic) (rlmm_topic_segments{instance=~"$instance"})', "{{topic}}"),
            ),
        ),
        Panel(
            title="Copied by topic",
            said="By all chosen daemons together.",
            queries=(Query(_rate("rlmm_topic_copied_bytes_total", "topic"), "{{topic}}"),),
            unit="Bps",
        ),
        Panel(
            title="Read by topic",
            said="Sent to readers of remote logs.",
            queries=(Query(_rate("rlmm_topic_fetched_bytes_total", "topic"), "{{topic}}"),),
            unit="Bps",
        ),
        Panel(
            title="Oldest copy by topic",
            said="Above half an hour something hangs, or the storage is too slow.",
            queries=(
                Query(
                    'max by (topic) (rlmm_topic_oldest_copy_seconds{instance=~"$instance"})',
                    "{{topic}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Not copied yet, by topic",
            said="Closed segments on the disks of the leaders. One that only grows is not tiered.",
            queries=(
                Query(
                    'sum by (topic) (rlmm_topic_copy_lag_bytes{instance=~"$instance"})',
                    "{{topic}}",
                ),
            ),
            unit="bytes",
        ),
        Panel(
            title="Failed copies by topic",
            said="Of one topic alone it is the topic; of all it is the storage.",
            queries=(Query(_rate("rlmm_topic_copies_failed_total", "topic"), "{{topic}}"),),
            unit="ops",
        ),
    ),
    "Copies and deletes": (
        Panel(
            title="Copies now",
            said="Waiting ones that grow for an hour: the storage is slower than the brokers.",
            queries=(
                Query(_level("rlmm_copies_in_flight"), "running on {{instance}}"),
                Query(_level("rlmm_copies_waiting"), "waiting on {{instance}}"),
            ),
        ),
        Panel(
            title="Copies ended",
            said="By what became of them.",
            queries=(Query(_rate("rlmm_copies_total", "outcome"), "{{outcome}}"),),
            unit="ops",
        ),
        Panel(
            title="Time of a copy",
            said="Of half of them, and of all but one in a hundred.",
            queries=(
                Query(_quantile(0.5, "rlmm_copy_duration_seconds"), "half, {{instance}}"),
                Query(_quantile(0.99, "rlmm_copy_duration_seconds"), "99 %, {{instance}}"),
            ),
            unit="s",
        ),
        Panel(
            title="Where a copy's time goes",
            said="Seconds spent in each phase in a second.",
            queries=(Query(_rate("rlmm_copy_phase_duration_seconds_sum", "phase"), "{{phase}}"),),
            unit="s",
        ),
        Panel(
            title="Deletes ended",
            said="By what became of them.",
            queries=(Query(_rate("rlmm_deletes_total", "outcome"), "{{outcome}}"),),
            unit="ops",
            may_be_empty=True,
        ),
        Panel(
            title="What waits to be removed",
            said="Removals and stuck segments, by the step that they wait at.",
            queries=(
                Query(_level("rlmm_cleaner_removals", "step"), "removal: {{step}}"),
                Query(_level("rlmm_cleaner_stuck_segments", "kind, step"), "{{kind}}: {{step}}"),
            ),
            may_be_empty=True,
        ),
    ),
    "Reads": (
        Panel(
            title="Fetches",
            said="By what became of them.",
            queries=(Query(_rate("rlmm_fetches_total", "outcome"), "{{outcome}}"),),
            unit="reqps",
        ),
        Panel(
            title="First byte",
            said="All but one in a hundred, from the cache and from the storage.",
            queries=(
                Query(
                    _quantile(0.99, "rlmm_read_first_byte_duration_seconds", "source"),
                    "{{source}}",
                ),
            ),
            unit="s",
            may_be_empty=True,
        ),
        Panel(
            title="Look-ups in caches that hit",
            said="Of the chunks and the indexes.",
            queries=(
                Query(
                    _rate("rlmm_read_cache_lookups_total", "cache", ',outcome="hit"')
                    + " / "
                    + _rate("rlmm_read_cache_lookups_total", "cache"),
                    "{{cache}}",
                ),
            ),
            unit="percentunit",
            may_be_empty=True,
        ),
    ),
    "Storage": (
        Panel(
            title="Requests",
            said="By operation.",
            queries=(Query(_rate("rlmm_storage_requests_total", "operation"), "{{operation}}"),),
            unit="reqps",
            may_be_empty=True,
        ),
        Panel(
            title="Requests that failed, and throttling",
            said="By the storage's reason.",
            queries=(
                Query(
                    _rate("rlmm_storage_requests_total", "outcome", ',outcome!="ok"'),
                    "{{outcome}}",
                ),
                Query(_rate("rlmm_storage_throttled_total", "instance"), "throttled, {{instance}}"),
            ),
            unit="reqps",
            may_be_empty=True,
        ),
        Panel(
            title="Requests at once, and how many may be",
            said="The limit is halved by throttling, and grows again.",
            queries=(
                Query(_level("rlmm_storage_requests_in_flight", "direction"), "{{direction}}"),
                Query(
                    _level("rlmm_storage_requests_in_flight_max", "direction"),
                    "{{direction}}, at most",
                ),
            ),
            may_be_empty=True,
        ),
    ),
    "Event log": (
        Panel(
            title="Events not yet read",
            said="The metadata partition that is furthest behind.",
            queries=(Query('max by (instance) (rlmm_log_lag_events{instance=~"$instance"})'),),
        ),
        Panel(
            title="Time of an append",
            said="Until it was durable: all but one in a hundred.",
            queries=(Query(_quantile(0.99, "rlmm_append_duration_seconds")),),
            unit="s",
        ),
        Panel(
            title="Age of the oldest snapshot",
            said="A restart reads what came since.",
            queries=(
                Query(
                    "time() - min by (instance)"
                    ' (rlmm_snapshot_timestamp_seconds{instance=~"$instance"})'
                ),
            ),
            unit="s",
        ),
    ),
    "Process": (
        Panel(
            title="Processor",
            said="One is one processor.",
            queries=(Query(_rate("process_cpu_seconds_total", "instance", ',job="rlmm"')),),
        ),
        Panel(
            title="Memory",
            said="Resident.",
            queries=(Query(_level("process_resident_memory_bytes", labels=',job="rlmm"')),),
            unit="bytes",
        ),
        Panel(
            title="Longest lag of the event loop",
            said="In the last minute.",
            queries=(Query(_level("rlmm_event_loop_lag_max_seconds")),),
            unit="s",
        ),
    ),
}


def panels() -> Iterator[Panel]:
    """Yield all panels, in their order."""
    for row in ROWS.values():
        yield from row


def dashboard() -> str:
    """Return the file that Grafana imports."""
    model = {
        "uid": "rlmm",
        "title": "rlmm: tiered storage",
        "description": "Made by `make monitoring` from deploy/monitoring/dashboard.py.",
        "tags": ["kafka", "tiered-storage"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_laid_out()),
    }
    return json.dumps(model, indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Daemon",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": "label_values(rlmm_build_info, instance)", "refId": "instance"},
            "definition": "label_values(rlmm_build_info, instance)",
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
            "sort": 1,
        },
    ]


def _laid_out() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, row in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
        }
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            number += 1
            yield _panel(panel, number, {"h": _HEIGHT, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.said,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "editorMode": "code",
            }
            for at, query in enumerate(panel.queries)
        ],
    }
