"""The page's answers are bounded, made in turns, and for known names only."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rlmm_daemon.core.explain.facts import CopyFailure
from rlmm_daemon.daemon.operator.http_get import SLOW_AT_ONCE, is_known_host
from rlmm_daemon.daemon.operator.page import answers as answers_module
from rlmm_daemon.daemon.operator.page.answer import ROWS_MAX
from rlmm_daemon.daemon.operator.page.answers import TROUBLES_MAX
from rlmm_daemon.daemon.operator.page.files import FILES
from tests.support.page import HOSTILE, Copies, copy_of, fill, lines, served
from tests.unit.daemon.events import TP, copied, until
from tests.unit.daemon.following.test_mapped import NEVER

STATIC = Path(answers_module.__file__).parent / "static"


async def get(
    page: Any, path: str, host: str | None = None, **query: str
) -> tuple[int, dict[str, str], bytes]:
    url = f"http://127.0.0.1:{page.address[1]}{path}"
    headers = {} if host is None else {"Host": host}
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, params=query, headers=headers) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.read()


async def asked(page: Any, path: str, **query: str) -> Any:
    status, _, body = await get(page, f"/api/{path}", **query)
    return {"status": status, **json.loads(body)}


@pytest.fixture
async def manager(rig):
    async with rig.manager(snapshots=NEVER) as running:
        running.replace_assignment([TP], [])
        await until(lambda: running.lookups.is_ready(TP))
        for number in range(3):
            await copied(running, number, 10 * number, 10 * number + 9)
        yield running


async def test_every_file_of_the_page_is_served_and_may_do_little(manager):
    assert {each.name for each in STATIC.iterdir()} == set(FILES.values())
    async with served(manager) as page:
        for path in FILES:
            status, headers, body = await get(page, path)
            assert status == 200
            assert body
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_has_no_script_or_style_in_its_html_and_makes_no_html_of_text():
    html = (STATIC / "index.html").read_text()
    assert html.count("<script") == 1
    assert "></script>" in html
    assert "style=" not in html
    assert "<style" not in html
    assert " on" not in html.replace(" on ", "")
    for file in STATIC.glob("*.js"):
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(",
                          "http://", "https://"):  # fmt: skip
            assert forbidden not in file.read_text(), file


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9405", True),
        ("[::1]:9405", True),
        ("localhost:9405", True),
        ("LocalHost", True),
        ("kafka1.example:80", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9405", False),
        ("[", False),
        ("", False),
        (None, False),
    ],
)
def test_a_host_is_known_by_address_or_by_a_name_of_ours(host, known):
    assert is_known_host(host, frozenset({"localhost", "kafka1.example"})) == known


async def test_a_foreign_name_that_leads_here_is_answered_nothing(manager):
    async with served(manager, names=("Tier.Example",)) as page:
        for path in ("/", "/api/overview", "/page.js"):
            assert (await get(page, path, host="evil.example"))[0] == 421
            assert (await get(page, path, host="tier.example:8080"))[0] == 200
        assert (await get(page, "/healthz", host="evil.example"))[0] == 200


async def test_the_overview_says_what_there_is_and_what_went_wrong(manager):
    copies = Copies()
    copies.running = [copy_of(TP, number) for number in range(ROWS_MAX + 1)]
    copies.failed = {
        f"{number}": CopyFailure(segment_id="s", message="x" * 9_999, at_ms=number)
        for number in range(TROUBLES_MAX + 1)
    }
    async with served(manager, copies) as page:
        found = await asked(page, "overview")
    assert found["totals"]["segments"] == 3
    assert found["totals"]["topics"] == 1
    assert found["metadata_partitions"] == {"ready": 1}
    assert [row["state"] for row in found["partitions"]] == ["ready"]
    assert (len(found["copies"]), found["copies_count"]) == (ROWS_MAX, ROWS_MAX + 1)
    assert len(found["troubles"]) == TROUBLES_MAX
    assert found["troubles"][0]["at_ms"] == TROUBLES_MAX, "the newest first"
    assert len(found["troubles"][0]["message"]) == 300


async def test_topics_are_bounded_searched_and_the_largest_first(manager):
    fill(manager, [f"small-{number}" for number in range(ROWS_MAX + 50)])
    copies = Copies()
    copies.bytes_by_topic, copies.running = {TP.topic: 7}, [copy_of(TP)]
    async with served(manager, copies) as page:
        turns = 0

        async def counted() -> None:
            nonlocal turns
            turns += 1

        manager.turns.wait = counted
        found = await asked(page, "topics")
        assert turns == 1
        assert (found["count"], len(found["topics"])) == (ROWS_MAX + 51, ROWS_MAX)
        assert found["topics"][0]["topic"] == TP.topic
        assert found["topics"][0]["copied_bytes"] == 7
        assert found["topics"][0]["oldest_copy_seconds"] == 75.5
        some = await asked(page, "topics", search="ALL-24")
        assert {row["topic"] for row in some["topics"]} == {
            "small-24", *(f"small-{number}" for number in range(240, 250))
        }  # fmt: skip


async def test_hostile_names_come_as_they_are_and_as_text(manager):
    placed = fill(manager, HOSTILE)
    async with served(manager) as page:
        found = await asked(page, "topics")
        assert {row["topic"] for row in found["topics"]} >= set(HOSTILE)
        for partition in placed:
            row = next(r for r in found["topics"] if r["topic"] == partition.topic)
            told = await asked(page, "topic", id=row["topic_id"])
            assert told["partitions"][0]["topic"] == partition.topic
            why = await asked(page, "explain", partition=str(partition))
            # Kafka's form on one line is what `explain` takes.
            assert why["status"] == (404 if "\n" in partition.topic else 200)


async def test_a_partition_is_explained_as_the_command_does_and_a_stranger_is_not_followed(manager):
    async with served(manager) as page:
        well = await asked(page, "explain", partition=str(TP))
        assert (well["verdict"], well["status"]) == ("ready", 200)
        held = await asked(page, "explain", partition=str(TP), offset="15")
        assert (held["cause"], held["status"]) == ("offset_found", 200)
        followed = len(manager.followed())
        for stranger in ("orders-0", f"{'A' * 22}:nobody-7", "", "x" * 5_000):
            assert (await asked(page, "explain", partition=stranger))["status"] == 404
        assert len(manager.followed()) == followed
        for wrong in ("-1", "x", "²", str(2**63)):
            url = "/api/explain"
            assert (await get(page, url, partition=str(TP), offset=wrong))[0] == 400
        assert (await asked(page, "topic", id="nobody"))["status"] == 404
        assert (await get(page, "/api/topics?" + "a=b&" * 50))[0] == 400


async def test_events_are_the_newest_lines_and_bounded(manager):
    known = lines(f"{number}" for number in range(ROWS_MAX + 1))
    async with served(manager, recent=known) as page:
        some = await asked(page, "events", newest="2")
        assert (some["count"], [row["text"] for row in some["events"]]) == (
            ROWS_MAX + 1, ["said 0", "said 1"]
        )  # fmt: skip
        for every in ({}, {"newest": "999"}):
            assert len((await asked(page, "events", **every))["events"]) == ROWS_MAX
        assert (await asked(page, "events", newest="-1"))["status"] == 400


async def test_answers_that_take_turns_are_made_a_few_at_once(manager):
    async with served(manager) as page:
        most = now = 0
        real = page.server._http.slow["/api/topics"]

        async def noted(query: Any) -> Any:
            nonlocal most, now
            now += 1
            most = max(most, now)
            try:
                return await real(query)
            finally:
                now -= 1

        page.server._http.slow = {"/api/topics": noted}
        fill(manager, [f"t{number}" for number in range(2_000)])
        await page.topics.take()
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(get(page, "/api/topics"))
        assert most <= SLOW_AT_ONCE


async def test_a_bug_in_an_answer_ends_that_request_alone(manager):
    async def broken(_query: Any) -> Any:
        raise ZeroDivisionError

    async with served(manager) as page:
        page.server._http.slow = {**page.server._http.slow, "/api/topics": broken}
        assert (await get(page, "/api/topics"))[0] == 500
        assert manager.bugs.counts["admin"] == 1
        assert (await get(page, "/api/overview"))[0] == 200
