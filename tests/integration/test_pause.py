"""`rlmm pause` and `rlmm resume` against a real daemon that is killed meanwhile."""

import json

from tests.integration.test_cli_changes import copy_words
from tests.support.stocked_daemon import Stocked, ran


def test_a_paused_topic_is_not_copied_and_is_read_until_it_is_resumed(it: Stocked):
    assert "nothing was done" in ran(it, "pause", "orders")
    ran(it, *copy_words(it))
    said = ran(it, "pause", "orders", "--execute")
    assert "rlmm resume orders --execute ends it" in said
    assert "under way" not in said
    it.daemon.kill()
    it.start()
    refused = it.rlmm(*copy_words(it), "--json")
    assert json.loads(refused.stderr.splitlines()[-1])["error"] == "copies_paused"
    assert len(it.listed(0)) == 4
    assert "orders since " in ran(it, "status")
    assert "were paused" in ran(it, "explain", "orders-0")
    assert it.json("status")["paused"]["refused"] == 1
    ran(it, "segments", "orders-0")
    assert "it is paused already" in ran(it, "pause", "orders", "--execute")
    assert "would begin again" in ran(it, "resume", "orders")
    assert json.loads(ran(it, "resume", "orders", "--execute", "--json"))["paused"] == []
    ran(it, *copy_words(it), "--json")
    assert "nothing to end" in ran(it, "resume", "orders")
    ended = [line for line in it.lines("audit.order_ended") if line.get("param_execute")]
    assert [line["order"] for line in ended] == ["topic_pause", "topic_pause", "topic_resume"]
