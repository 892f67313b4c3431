"""The page in a real browser: two widths, light and dark, the keyboard alone, names that attack.

Asked for by RLMM_TEST_PAGE=1, since it needs Chromium: `make test-page`. Pictures of what was seen
are left in var/page.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path

import pytest

from rlmm_daemon.config.model import Prices
from rlmm_daemon.core.explain.facts import CopyFailure
from rlmm_daemon.domain.errors import RlmmError
from tests.docs.pages import DOCS
from tests.support.browser import Tab, browser
from tests.support.daemon_process import REPOSITORY
from tests.support.fork_server import ForkServer
from tests.support.page import FOLLOWS, HOSTILE, LEADS, Copies, copy_of, fill, lines, served
from tests.support.stocked_daemon import Stocked, free_address, make
from tests.unit.adapters.test_peers import peer
from tests.unit.daemon.conftest import rig as rig  # noqa: PLC0414 - a fixture
from tests.unit.daemon.events import TP, copied, until
from tests.unit.daemon.following.test_mapped import NEVER
from tests.unit.daemon.operator.test_fleet import TOLD

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("RLMM_TEST_PAGE"), reason="needs Chromium: make test-page"
    ),
    pytest.mark.timeout(180),
]
PICTURES = REPOSITORY / "var" / "page"
WIDE, NARROW = 1_280, 390
SHOWN = "document.body?.dataset.state === 'shown'"
#: The least contrast of a text with what is behind it, by WCAG.
CONTRAST = """(() => {
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (text) => {
    const [r, g, b] = text.match(/\\d+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (each) => {
    for (; each; each = each.parentElement) {
      const found = getComputedStyle(each).backgroundColor;
      if (found !== 'rgba(0, 0, 0, 0)') return found;
    }
    return 'rgb(255, 255, 255)';
  };
  const says = (each) => [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return Math.min(...[...document.querySelectorAll('body *')]
    .filter((each) => each.offsetParent && says(each))
    .map((each) => {
      const [a, b] = [light(getComputedStyle(each).color), light(behind(each))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }));
})()"""


@pytest.fixture
async def tab(rig, tmp_path) -> AsyncIterator[Tab]:
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in range(3):
            await copied(manager, number, 10 * number, 10 * number + 9)
        hostile = fill(manager, HOSTILE)
        copies = Copies()
        copies.running = [copy_of(TP, 1), copy_of(hostile[0], 2)]
        copies.failed = {
            str(each): CopyFailure(segment_id="s", message=f"storage says {each.topic}", at_ms=1)
            for each in hostile
        }
        copies.bytes_by_topic = {TP.topic: 3_000_000}
        async with served(manager, copies, recent=lines(HOSTILE * 2)) as page:
            host, port = page.address
            async with browser(tmp_path / "chromium", f"http://{host}:{port}/") as found:
                await found.until(SHOWN)
                yield found
                assert found.complaints == []
                assert found.asked
                assert {each.split("/")[2] for each in found.asked} == {f"{host}:{port}"}


async def go(tab: Tab, path: str) -> None:
    await tab.value(f"document.body.dataset.state = ''; location.hash = {path!r}; 1")
    await tab.until(SHOWN)


async def no_harm(tab: Tab) -> None:
    """Nothing that a name says was done, and nothing of it became an element."""
    assert "owned" not in await tab.value("document.title")
    assert (
        await tab.value("document.querySelectorAll('main img, main script, main svg').length") == 0
    )
    assert await tab.value("document.querySelectorAll('[onerror], [onload], [style]').length") == 0
    targets = await tab.value(
        "[...document.querySelectorAll('main a')].map((each) => each.getAttribute('href'))"
    )
    assert all(each.startswith("#/") for each in targets)


async def test_two_widths_light_and_dark_show_everything_without_scrolling_sideways(tab):
    for width, dark in product((WIDE, NARROW), (False, True)):
        await tab.look(width, dark=dark)
        assert await tab.value("document.documentElement.scrollWidth") <= width
        await no_harm(tab)
        for small in ("button", "input"):
            heights = await tab.value(
                f"[...document.querySelectorAll('{small}')].map((each) => each.offsetHeight)"
            )
            assert min(heights) >= 24
        paper = await tab.value("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)")
        name = f"overview-{width}-{'dark' if dark else 'light'}.png"
        await tab.picture(PICTURES / name, whole=width == WIDE)


async def test_a_topic_that_is_paused_is_marked_so(rig, tmp_path):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 0, 0, 9)
        await manager.pauses.pause(TP.topic)
        async with served(manager) as page:
            host, port = page.address
            async with browser(tmp_path / "chromium", f"http://{host}:{port}/") as found:
                await found.until(SHOWN)
                said = "[...document.querySelectorAll('main th')].map((each) => each.textContent)"
                assert f"{TP.topic} paused" in await found.value(said)
                assert found.complaints == []


async def rows_of(tab: Tab, caption: str) -> list[list[str]]:
    """Return the cells of the table whose caption begins so."""
    rows = (
        "[...[...document.querySelectorAll('main table')]"
        f".find((each) => each.caption.textContent.startsWith({caption!r}))"
        ".tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    found: list[list[str]] = await tab.value(rows)
    return found


async def test_events_are_shown_as_text_the_newest_among_the_rest_and_all_apart(tab):
    some = await rows_of(tab, "Events, 12 of 24")
    assert some[0][:3] == [f"said {HOSTILE[0]}", "error", "1"]
    await tab.value("document.querySelector('main a[data-key=\"events\"]').click()")
    await tab.until("document.querySelector('h1')?.textContent === 'Recent events'")
    assert len(await rows_of(tab, "Events, 24 of 24")) == 24
    for width, dark in product((WIDE, NARROW), (False, True)):
        await tab.look(width, dark=dark)
        assert await tab.value("document.documentElement.scrollWidth") <= width
        assert await tab.value(CONTRAST) >= 4.5
        await no_harm(tab)
        await tab.picture(PICTURES / f"events-{width}-{'dark' if dark else 'light'}.png")


async def test_a_fleet_is_shown_with_who_is_dead_and_who_says_what_is_none(rig, tmp_path):
    said = {
        **TOLD,
        "version": HOSTILE[0],
        "cluster_id": HOSTILE[4],
        "quorum": {"role": HOSTILE[1], "epoch": 2**53},
        "wrong": [{"text": each, "command": each} for each in HOSTILE],
        "wrong_count": 99,
    }
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with (
        rig.manager(snapshots=NEVER) as manager,
        peer(head + json.dumps(said).encode()) as hostile,
        peer(head + json.dumps(TOLD).encode()) as well,
        peer(head + f"<h1>{HOSTILE[1]}</h1>".encode()) as stranger,
        peer(None) as silent,
        served(manager, peers=[well, hostile, stranger, silent, "127.0.0.1:1"]) as page,
        browser(tmp_path / "chromium", "http://{}:{}/".format(*page.address)) as tab,
    ):
        await tab.until(SHOWN)
        await tab.value("document.getElementById('fleet').click()")
        await tab.until("document.querySelector('h1')?.textContent === 'Fleet'")
        await tab.until("document.querySelector('main').textContent.includes('no answer in 2 s')")
        rows = {row[0]: row for row in await rows_of(tab, "Daemons")}
        wrong = {each: row[1] for each, row in rows.items()}
        assert (rows[well][2], wrong[well]) == ("2", "nothing")
        assert rows[hostile][4] == HOSTILE[0]
        assert "and 94 more" in wrong[hostile]
        assert wrong[stranger] == "answered with what is no daemon's standing"
        assert wrong["127.0.0.1:1"] == "not reached: Connection refused"
        for width, dark in product((WIDE, NARROW), (False, True)):
            await tab.look(width, dark=dark)
            assert await tab.value("document.documentElement.scrollWidth") <= width
            assert await tab.value(CONTRAST) >= 4.5
            await no_harm(tab)
            await tab.picture(PICTURES / f"fleet-{width}-{'dark' if dark else 'light'}.png")
        assert tab.complaints == []


@pytest.mark.parametrize("priced", [False, True])
async def test_a_topics_next_thirty_days_are_shown_with_costs_if_there_are_prices(
    rig, tmp_path, priced
):
    prices = Prices(currency="EUR", gib_month=1_000_000.0) if priced else None
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in range(3):
            await copied(manager, number, 10 * number, 10 * number + 9)
        async with (
            served(manager, prices=prices) as page,
            browser(tmp_path / "chromium", "http://{}:{}/".format(*page.address)) as tab,
        ):
            await tab.until(SHOWN)
            await tab.value("document.querySelector('main a[data-key^=\"n \"]').click()")
            await tab.until("document.querySelector('h1')?.textContent === 'Topic orders'")
            text = await tab.value("document.querySelector('main').textContent")
            assert "Whole days of history28" in text
            assert "goes on for 30 days" in text
            assert ("EUR" in text) == ("Cost of what is held" in text) == priced
            assert ("No price is configured" in text) != priced
            for width, dark in product((WIDE, NARROW), (False, True)):
                await tab.look(width, dark=dark)
                assert await tab.value("document.documentElement.scrollWidth") <= width
                assert await tab.value(CONTRAST) >= 4.5
                if priced:
                    name = f"forecast-{width}-{'dark' if dark else 'light'}.png"
                    await tab.picture(PICTURES / name)
            assert tab.complaints == []


@pytest.mark.parametrize(
    ("told", "voters"),
    [
        (LEADS, [["1", "this replica", "yes"], ["2", "missed", "no"], ["3", "heard", "no"]]),
        (
            FOLLOWS,
            [["1", "heard", "yes"], ["2", "this replica", "no"],
             ["3", "not asked by a follower", "no"]],
        ),
        ({"role": None, "why": HOSTILE[0]}, None),
    ],
    ids=["leads", "follows", "not open"],
)  # fmt: skip
async def test_a_quorum_is_shown_by_the_facts_of_status(rig, tmp_path, told, voters):
    async with (
        rig.manager(snapshots=NEVER) as manager,
        served(manager, log_facts={"quorum": told}) as page,
        browser(tmp_path / "chromium", "http://{}:{}/".format(*page.address)) as tab,
    ):
        await tab.until(SHOWN)
        text = await tab.value("document.querySelector('main').textContent")
        if voters is None:
            assert f"This replica is not open: {HOSTILE[0]}" in text
        else:
            assert await rows_of(tab, "Voters, 3; 2 decide") == voters
            assert "High watermark12,345,670" in text
            assert ("checkpoint12,000,000 in epoch 6" in text) == (told is LEADS)
        assert ("leader, this replica, misses 2: 2 of 3" in text) == (told is LEADS)
        for width, dark in product((WIDE, NARROW), (False, True)):
            await tab.look(width, dark=dark)
            assert await tab.value("document.documentElement.scrollWidth") <= width
            assert await tab.value(CONTRAST) >= 4.5
            await no_harm(tab)
            if told is LEADS:
                name = f"quorum-{width}-{'dark' if dark else 'light'}.png"
                await tab.picture(PICTURES / name)
        assert tab.complaints == []


async def test_hostile_names_are_text_and_lead_to_their_topic(tab):
    text = await tab.value("document.querySelector('main').textContent")
    assert HOSTILE[0] in text
    assert "\u202e" not in text
    assert "\\u{202e}gnp" in text
    assert "\\u{1b}[2J" in text
    links = await tab.value(
        "[...document.querySelectorAll('main a[data-key^=\"n \"]')].map((each) => each.hash)"
    )
    assert len(links) == len(HOSTILE) + 1
    for each in links:
        await go(tab, each)
        await no_harm(tab)
        assert await tab.value("document.querySelectorAll('tbody tr').length") == 1
        (why,) = await tab.value(
            "[...document.querySelectorAll('main a')].map((each) => each.hash)"
        )
        if "%0A" not in why:  # `explain` takes names of one line
            await go(tab, why)
            await no_harm(tab)
            assert "Evidence" in await tab.value("document.querySelector('main').textContent")
    await tab.look(NARROW, dark=False)
    assert await tab.value("document.documentElement.scrollWidth") <= NARROW


async def test_a_topic_and_an_offset_are_found_by_the_keyboard_alone(tab):
    await tab.look(WIDE, dark=False)
    await tab.key("Tab", 9)
    assert await tab.value("document.activeElement.id") == "skip"
    for wanted in ("#/", "fleet", "topic"):
        await tab.key("Tab", 9)
        at = "document.activeElement.id || document.activeElement.getAttribute('href')"
        assert await tab.value(at) == wanted
    await tab.call("Input.insertText", text="orde")
    await tab.key("Tab", 9)
    await tab.call("Input.insertText", text="15")
    await tab.key("Enter", 13, "\r")
    await tab.until("document.querySelector('h1')?.textContent === 'Topics with orde'")
    assert await tab.value("document.activeElement.id") == "main", "a reader begins with the news"
    assert await tab.value("document.getElementById('said').textContent") == "1 topics"
    await tab.picture(PICTURES / "search.png")
    for head in ("Topic orders", "Partition "):
        for _ in range(4):
            await tab.key("Tab", 9)
            if await tab.value("document.activeElement.tagName") == "A":
                break
        await tab.key("Enter", 13, "\r")
        await tab.until(f"document.querySelector('h1')?.textContent.startsWith({head!r})")
    text = await tab.value("document.querySelector('main').textContent")
    assert "ready" in text
    assert "offset 15" in text
    await tab.picture(PICTURES / "explain.png")


async def test_whoever_cannot_see_is_told_what_everything_is(tab):
    tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    roles = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if "role" in n]
    told = {"link", "button", "textbox", "searchbox", "table", "progressbar", "region"}
    nameless = [role for role, name in roles if role in told and not name.strip()]
    assert nameless == []
    assert {"main", "banner", "contentinfo", "search", "heading", "table"} <= {r for r, _ in roles}
    assert await tab.value("document.querySelectorAll('h1').length") == 1
    assert await tab.value("document.querySelectorAll('th:not([scope])').length") == 0
    assert await tab.value("document.documentElement.lang") == "en"


async def test_text_stands_out_from_what_is_behind_it(tab):
    for dark in (False, True):
        await tab.look(WIDE, dark=dark)
        assert await tab.value(CONTRAST) >= 4.5


async def test_a_look_keeps_the_readers_place_and_can_be_paused(tab):
    await tab.value("document.querySelector('main a[data-key^=\"n \"]').focus(); 1")
    key = await tab.value("document.activeElement.dataset.key")
    await tab.value("document.querySelector('h1').id = 'old'; 1")
    await tab.until("document.getElementById('old') === null")
    assert await tab.value("document.activeElement.dataset.key") == key
    await tab.value("document.getElementById('pause').click()")
    assert (
        await tab.value("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    )


async def test_a_daemon_that_is_gone_is_said_and_what_was_seen_stays(tab):
    await tab.call("Network.emulateNetworkConditions", offline=True, latency=0,
                   downloadThroughput=0, uploadThroughput=0)  # fmt: skip
    await tab.until("!document.getElementById('trouble').hidden")
    assert await tab.value("document.querySelectorAll('tbody tr').length") > 3
    tab.complaints.clear()  # the browser's own, of a network that is not there
    await tab.call("Network.emulateNetworkConditions", offline=False, latency=0,
                   downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    await tab.until("document.getElementById('trouble').hidden")


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Stocked]:
    with ForkServer() as forks:
        here = free_address()
        stocked = make(tmp_path, forks, {"admin.listen": here, "admin.peers": f'["{here}"]'})
        with stocked.daemon:
            yield stocked


async def test_a_real_daemon_shows_what_it_copied_and_which_copy_failed(it, tmp_path, pytestconfig):
    it.stock()
    with it.daemon.client() as client, pytest.raises(RlmmError):
        client.copy_segment(it.next(0).metadata, it.copied(0)[0].files)
    listen = it.daemon.settings["admin.listen"]
    async with browser(tmp_path / "chromium", f"http://{listen}/") as tab:
        await tab.until(SHOWN)
        await tab.look(WIDE, dark=False)
        row = "[...document.querySelectorAll('tr')].find((each) => each.textContent.includes("
        await tab.until(f"{row}'copy failed'))?.textContent.startsWith('orders-0')")
        await tab.until(
            "document.querySelector('main a[data-key^=\"n \"]')?.textContent === 'orders'"
        )
        await tab.picture(PICTURES / "daemon.png")
        if pytestconfig.getoption("--rewrite"):
            await tab.picture(DOCS / "pictures" / "page.png")
        happened = [row[0] for row in await rows_of(tab, "Events")]
        assert any(each.startswith("copy failed") and "orders-0" in each for each in happened)
        assert any(each.startswith("partition.state") for each in happened)
        assert not any(each.startswith("copy finished") for each in happened)
        link = "document.querySelector('main a[data-key^=\"t \"]')"
        await tab.value(f"{link}.click()")
        await tab.until("document.querySelector('h1')?.textContent === 'Partition orders-0'")
        said = it.explain(0)
        text = await tab.value("document.querySelector('main').textContent")
        assert said["sentence"].replace("`", "") in text
        await tab.picture(PICTURES / "daemon-explain.png")
        await tab.value("location.hash = '#/fleet'; 1")
        await tab.until("document.querySelectorAll('tbody tr').length === 2")
        mine, peer_of_itself = await rows_of(tab, "Daemons")
        assert peer_of_itself[0] == listen
        assert peer_of_itself[1:5] == mine[1:5] == ["nothing", "1", "rlmm-demo-cluster", "0.1.0"]
        assert tab.complaints == []
