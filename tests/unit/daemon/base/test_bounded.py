"""A bounded map forgets in the order in which its entries came."""

from rlmm_daemon.daemon.base.bounded import Bounded


def test_what_was_put_in_longest_ago_goes_first_and_a_repeat_is_new():
    kept: Bounded[str, int] = Bounded(3)
    for number, key in enumerate("abcad"):
        kept[key] = number
    assert list(kept.items()) == [("c", 2), ("a", 3), ("d", 4)]
    del kept["c"]
    kept["e"] = 5
    assert list(kept) == ["a", "d", "e"]
