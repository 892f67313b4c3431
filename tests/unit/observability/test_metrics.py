import re

from rlmm_daemon.observability import metrics
from rlmm_daemon.observability.metrics import Metrics


def names() -> set[str]:
    text = Metrics().text().decode()
    created = set(re.findall(r"rlmm_\w+_created", text))
    return set(re.findall(r"^# TYPE (rlmm_\w+) ", text, re.MULTILINE)) - created


def test_every_metric_of_the_table_of_kafkas_names_exists():
    table = set(re.findall(r"^(rlmm_\w+)", metrics.__doc__ or "", re.MULTILINE))
    assert len(table) > 5
    assert table <= names()


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
