"""Users and groups of the socket's rights, by name."""

import grp
import os
import pwd

import pytest

from rlmm_daemon.config import Config, Peers, parse
from rlmm_daemon.config.accounts import ids_of, unknown_accounts
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.offline.checkup import access
from rlmm_daemon.wiring.options import server_options_of

ME = pwd.getpwuid(os.geteuid()).pw_name
MINE = grp.getgrgid(os.getegid()).gr_name


def config(rights: str) -> Config:
    return parse(
        '[daemon]\nbroker_id = 1\ncluster_id = "c"\n'
        '[event_log]\nkind = "embedded"\nsingle_broker = true\n'
        f"[socket.rights.write]\n{rights}\n"
    )


def test_a_name_means_the_id_that_this_machine_has_for_it():
    peers = Peers(uids=(7,), users=(ME,), groups=(MINE,))
    ids = ids_of("socket.rights.write", peers)
    assert ids.uids == {7, os.geteuid()}
    assert ids.gids == {os.getegid()}


def test_the_socket_gets_the_ids_of_the_names():
    options = server_options_of(config(f'users = ["{ME}"]\ngroups = ["{MINE}"]'))
    assert options.rights.write.uids == {os.geteuid()}
    assert options.rights.write.gids == {os.getegid()}


@pytest.mark.parametrize("kind", ["users", "groups"])
def test_a_name_that_nobody_has_ends_the_start_and_is_named(kind: str):
    wrong = config(f'{kind} = ["no-such-name"]')
    with pytest.raises(InvalidArgument, match=rf"socket\.rights\.write\.{kind}: .*no-such-name"):
        server_options_of(wrong)
    [said] = unknown_accounts(wrong)
    assert "no-such-name" in said
    [row] = [each for each in access(wrong, "rlmm.toml") if each.check == "socket rights"]
    assert (row.verdict, row.found) == ("failed", said)
