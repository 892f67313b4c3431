import re
from pathlib import Path

import pytest

import rlmm_daemon
from rlmm_daemon.observability.metrics import Metrics


def names() -> set[str]:
    text = Metrics().text().decode()
    created = set(re.findall(r"rlmm_\w+_created", text))
    return set(re.findall(r"^# TYPE (rlmm_\w+) ", text, re.MULTILINE)) - created


def test_units_are_suffixes_and_base_units():
    assert not [name for name in names() if re.search(r"_(ms|milliseconds|kb|mb|micros)\b", name)]
    for name in names():
        if "duration" in name or "lag_max" in name:
            assert name.endswith("_seconds"), name


def test_two_daemons_share_nothing():
    first, second = Metrics(), Metrics()
    first.storage.copies.labels("ok").inc()
    assert second.registry.get_sample_value("rlmm_copies_total", {"outcome": "ok"}) is None


def test_the_tally_counts_and_escapes_like_a_counter():
    own = Metrics()
    own.socket.requests.count("is_ready", 'o"k\n')
    own.socket.requests.count("is_ready", 'o"k\n', by=2)
    assert own.socket.requests.value("is_ready", 'o"k\n') == 3
    text = own.text().decode()
    assert "# TYPE rlmm_requests_total counter" in text
    assert 'rlmm_requests_total{method="is_ready",outcome="o\\"k\\n"} 3.0' in text


def declared() -> list[str]:
    groups = vars(Metrics()).items()
    return [f"{group}.{name}" for group, of in groups if hasattr(of, "__dict__")
            for name in vars(of) if group != "registry"]  # fmt: skip


@pytest.mark.parametrize("metric", declared())
def test_every_metric_is_moved_by_something(metric):
    group, name = metric.split(".")
    room = Path(rlmm_daemon.__path__[0])
    sources = [each for each in room.rglob("*.py") if each.name != "metrics.py"]
    inside = {"log.sync", "log.group"}  # by LogMetrics.synced
    name = "synced" if metric in inside else name
    moved = re.compile(rf"\b(?:_?metrics|own|{group}|_reads|log)\.{name}\b")
    assert any(moved.search(source.read_text()) for source in sources)


def test_a_spread_is_a_histogram_with_its_bounds_and_sum():
    own = Metrics()
    for seconds in (0.0001, 0.00011, 4.0, 99.0):
        own.log.append.observe(seconds)
    text = own.text().decode()
    assert "# TYPE rlmm_append_duration_seconds histogram" in text
    for bound, count in (("0.0001", 1), ("0.00025", 2), ("2.5", 2), ("10.0", 3), ("+Inf", 4)):
        assert f'rlmm_append_duration_seconds_bucket{{le="{bound}"}} {count}.0' in text
    assert "rlmm_append_duration_seconds_count 4.0" in text
    assert "rlmm_append_duration_seconds_sum 103.00021" in text


def test_nobody_is_served_the_times_at_which_counters_began():
    own = Metrics()
    own.storage.copies.labels("ok").inc()
    own.storage.copy.observe(1.0)
    assert "_created" not in own.text().decode()


def test_a_daemon_without_a_cache_has_none_that_fails():
    """Of a storage in local directories, and where `read.cache_bytes` is 0."""
    assert Metrics().registry.get_sample_value("rlmm_read_cache_writable") == 1
