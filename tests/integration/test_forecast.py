"""`rlmm forecast` of a real daemon: what it holds, and costs by the prices of its configuration."""

import json
from pathlib import Path

from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import make, ran


def test_it_says_what_is_held_and_prices_only_what_has_a_price(tmp_path: Path, forks: ForkServer):
    prices = {"prices.currency": "EUR", "prices.gib_month": 1_000_000.0}
    it = make(tmp_path, forks, prices)
    with it.daemon:
        it.stock()
        said = ran(it, "forecast")
        assert "orders" in said
        assert "EUR" in said
        assert "nothing has been tiered for a whole day yet" in said
        answer = json.loads(ran(it, "forecast", "orders", "--json"))
        (row,) = answer["topics"]
        held = sum(each.segment_size_bytes for n in (0, 1) for each in it.listed(n).values())
        assert (row["topic"], row["segments"], row["bytes"]) == ("orders", 6, held)
        assert row["cost"]["held"] == row["cost"]["total"] == held / 2**30 * 1_000_000
        assert row["write_requests"] is None, "a directory counts no requests"
        assert "no event of the log names nobody" in ran(it, "forecast", "nobody")
