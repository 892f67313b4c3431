"""What a log has to hold, by how far daemons had read it and what was accepted as lost."""

from rlmm_daemon.offline.log_ends import Expected

WANTED = Expected(read_to={0: 8, 1: 8}, accepted_to={1: 5})


def test_a_log_lacks_what_daemons_had_read_and_nobody_accepted_as_lost():
    assert WANTED.why_lacking(0, 0, 8) is None
    assert WANTED.why_lacking(0, 0, 9) is None
    assert WANTED.why_lacking(0, 0, 7) == "it ends at offset 7, daemons had read it to 8"
    assert WANTED.why_lacking(0, 1, 9) == "it begins at offset 1"
    assert WANTED.why_lacking(1, 5, 8) is None
    assert WANTED.why_lacking(1, 6, 8) == "it begins at offset 6"
    assert WANTED.why_lacking(2, 0, 0) is None, "nobody had read anything of it"


def test_a_log_of_which_nothing_is_left_ends_where_it_begins():
    """Nothing was read, so the fold stands at 0."""
    accepted = Expected(read_to={0: 8}, accepted_to={0: 8})
    assert accepted.why_lacking(0, 8, 0) is None
    assert Expected(read_to={0: 9}, accepted_to={0: 8}).why_lacking(0, 8, 0) is not None
