"""Orders about a manifest: harmless when repeated, refused of one that was restored."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.reconcile.act import manifest_orders
from rlmm_daemon.reconcile.act.quarantine import Manifest, ManifestWord

LISTED = Manifest(run="run", fence=1, created_ms=1, entries=())
FIRST, SECOND = ManifestWord(by="ada", at_ms=1), ManifestWord(by="bob", at_ms=2)


def test_whoever_holds_it_back_first_is_named_until_it_is_released():
    held = manifest_orders.held(LISTED, FIRST)
    assert manifest_orders.held(held, SECOND).held == FIRST
    assert manifest_orders.released(held, "m") == LISTED
    assert manifest_orders.released(LISTED, "m") == LISTED


def test_a_release_approves_nothing_and_an_approval_releases_nothing():
    held = manifest_orders.held(LISTED, FIRST)
    assert manifest_orders.released(held, "m").approved is UNSET
    approved = manifest_orders.approved(held, "m", SECOND)
    assert (approved.held, approved.approved) == (FIRST, SECOND)
    assert manifest_orders.approved(approved, "m", FIRST).approved == SECOND


def test_one_that_was_restored_is_let_go_by_nobody():
    restored = replace(LISTED, restored=True)
    for order in (
        lambda: manifest_orders.released(restored, "m"),
        lambda: manifest_orders.approved(restored, "m", FIRST),
    ):
        with pytest.raises(InvalidArgument, match="was restored: its objects stay for good"):
            order()
