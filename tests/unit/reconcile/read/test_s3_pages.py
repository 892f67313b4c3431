"""Every key of a bucket is listed once, whatever its name, or the listing is an error."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import listing, s3_client
from tests.unit.reconcile.bucket import SECRET, Bucket, serving

#: Keys that anybody may put and that are no paths.
ODD = ("a//b", "x/../y", "x/./z", "new\nline", "esc\x1b", "../up", "/lead", "//", "d/e//f")
PLAIN = ("stray", "a/b", "a/c/d", "orders-0/one", "orders-0/two", "x/w", "ü/~ %2F+", "new")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with serving(tmp_path, []) as bucket:
        yield bucket


def keys(bucket: Bucket) -> list[str]:
    parts = listing.slices(bucket.config, [""])
    return sorted(each.key for part in parts for each in listing.objects(bucket.config, part))


def test_keys_that_are_no_paths_are_listed_beside_the_others(bucket: Bucket) -> None:
    bucket.keys = [*ODD, *PLAIN]
    assert keys(bucket) == sorted(bucket.keys)


def test_nothing_is_listed_before_s3_said_whose_bucket_it_is(bucket: Bucket) -> None:
    """Another account's bucket of the same name would look like one that lost everything."""
    storage = msgspec.structs.replace(bucket.config.storage, expected_bucket_owner="111122223333")
    bucket.config = msgspec.structs.replace(bucket.config, storage=storage)
    bucket.keys = [*PLAIN]
    header = "x-amz-expected-bucket-owner"

    def foreign(_: dict[str, str]) -> tuple[int, str] | None:
        return (403, "AccessDenied") if header in bucket.headers[-1] else None

    bucket.fails = foreign
    with pytest.raises(Incomplete, match="expected_bucket_owner"):
        keys(bucket)
    assert [headers[header] for headers in bucket.headers] == ["111122223333"]
    assert header in bucket.headers[0]["authorization"], "signed"
    bucket.fails = lambda _: None
    assert keys(bucket) == sorted(PLAIN)


@pytest.mark.parametrize("odd", ["a//b", "../up", "/lead", "new\nline"])
def test_one_odd_key_does_not_end_a_listing(bucket: Bucket, odd: str) -> None:
    bucket.keys = [odd, *PLAIN]
    assert keys(bucket) == sorted(bucket.keys)


@pytest.mark.parametrize("place", [0, 10, 25, 39])
def test_a_page_in_the_middle_that_has_an_odd_key_costs_none_and_doubles_none(
    bucket: Bucket, place: int
) -> None:
    bucket.page_keys = 10
    bucket.keys = [f"p/{number:03}" for number in range(40)]
    bucket.keys[place] += "//odd"
    assert keys(bucket) == sorted(bucket.keys)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("failed_page", [1, 2])
def test_a_listing_that_is_cut_anywhere_is_an_error(
    bucket: Bucket, failed_page: int, *, odd: bool
) -> None:
    bucket.page_keys = 10
    bucket.keys = [f"p/{number:03}" for number in range(30)] + ["p//"] * odd
    asked: set[str] = set()

    def fails(query: dict[str, str]) -> tuple[int, str] | None:
        # Told apart by where they begin: a request is repeated, and another client may ask again.
        asked.add(query.get("continuation-token") or query.get("start-after", ""))
        return (403, "AccessDenied") if len(asked) >= failed_page else None

    part = listing.Slice("p/")
    bucket.fails = fails
    with pytest.raises(Incomplete, match="cut short"):
        [*listing.objects(bucket.config, part)]
    bucket.fails = lambda _query: None
    assert len([*listing.objects(bucket.config, part)]) == len(bucket.keys)


def test_a_server_that_asks_for_less_is_asked_again_later(bucket: Bucket) -> None:
    bucket.page_keys = 10
    bucket.keys = [f"p/{number:03}" for number in range(30)]
    asked: dict[str, list[float]] = {}

    def fails(query: dict[str, str]) -> tuple[int, str] | None:
        page = query.get("continuation-token") or query.get("start-after", "")
        asked.setdefault(page, []).append(time.monotonic())
        return (503, "SlowDown") if len(asked) > 1 and len(asked[page]) <= 2 else None

    bucket.fails = fails
    found = [each.key for each in listing.objects(bucket.config, listing.Slice("p/"))]
    assert sorted(found) == sorted(bucket.keys)
    first, second, third = asked["p/009"]
    assert min(second - first, third - second) > 0.05, "it was asked again at once"


def test_a_server_that_asks_for_less_for_ever_is_an_error(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "_ATTEMPTS", 2)
    bucket.keys = ["p/1"]
    bucket.fails = lambda _query: (503, "SlowDown")
    with pytest.raises(Incomplete, match=r"cut short: .*503"):
        [*listing.objects(bucket.config, listing.Slice("p/"))]


def test_keys_that_come_in_no_order_are_not_cut_into_slices(bucket: Bucket) -> None:
    storage = msgspec.structs.replace(bucket.config.storage, bucket="segments--euw1-az1--x-s3")
    express = msgspec.structs.replace(bucket.config, storage=storage)
    with pytest.raises(Incomplete, match="directory bucket"):
        listing.slices(express, [""])


def test_what_is_told_of_a_failure_holds_nothing_of_the_clients_state(bucket: Bucket) -> None:
    bucket.fails = lambda _query: (403, "AccessDenied")
    with pytest.raises(Incomplete) as looked:
        listing.look_up(bucket.config, "p/one")
    with pytest.raises(Incomplete) as listed:
        [*listing.objects(bucket.config, listing.Slice("p/"))]
    for told in (looked.value.message, listed.value.message):
        assert "Debug source" not in told
        assert SECRET not in told
        assert "\n" not in told


def test_an_object_is_absent_only_where_the_marker_is_there(bucket: Bucket) -> None:
    """A bare 404 is what some servers answer to a key that they don't know."""
    asked: list[str] = []

    def fails(query: dict[str, str]) -> tuple[int, str] | None:
        asked.append(query["path"])
        return None if query["path"].endswith(there) else (404, "")

    bucket.fails, there = fails, "/_rlmm/marker.json"
    assert listing.look_up(bucket.config, "p/one") is None
    there = "/p/one"
    found = listing.look_up(bucket.config, "p/one")
    assert found is not None
    assert asked == [f"/segments/{key}" for key in ("p/one", "_rlmm/marker.json", "p/one")]
    there = "/p/two"
    with pytest.raises(Incomplete, match="does not know the keys of this machine"):
        listing.look_up(bucket.config, "p/one")


def test_keys_that_may_not_ask_for_old_versions_are_noted(bucket: Bucket) -> None:
    notes: list[str] = []
    bucket.keys = ["stray"]
    listing.slices(bucket.config, [""], notes.append)
    assert notes == [], "the bucket keeps none"
    bucket.fails = lambda query: (403, "AccessDenied") if "versioning" in query else None
    assert not any(part.old for part in listing.slices(bucket.config, [""], notes.append))
    (note,) = notes
    assert note.startswith("old versions were not looked for")
