"""Who ordered what: two lines in the log for each order that changes something."""

import inspect
import os
import syslog
from collections.abc import Iterator, Sequence
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.client import AsyncClient, ClientOptions
from rlmm_daemon.codec import api
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.socket.audit import is_order
from rlmm_daemon.daemon.socket.greeting import Role
from rlmm_daemon.daemon.socket.handlers import REQUESTS
from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from tests.unit.daemon.events import started
from tests.unit.daemon.socket.fakes import ORDERS, FakeCopier, daemon

R = api.Right


def lines(caught: Sequence[Any]) -> list[Any]:
    return [each for each in caught if each["event"].startswith("audit.")]


async def test_an_order_is_logged_with_who_gave_it_what_it_said_and_how_it_ended(path):
    options = ClientOptions(client="rlmm partition accept-loss, by anna@host")
    with structlog.testing.capture_logs() as caught:
        async with daemon(path), AsyncClient(path, options) as client:
            await client.partition_accept_loss(3, without_looking=True)
            await client.delete_segment(ORDERS, SegmentId(bytes(range(16))))
    begun, ended, deleting, deleted = lines(caught)
    assert begun == {
        "event": "audit.order_begun",
        "log_level": "info",
        "order": "partition_accept_loss",
        "uid": os.getuid(),
        "pid": os.getpid(),
        "client": "rlmm partition accept-loss, by anna@host",
        "param_metadata_partition": 3,
        "param_everything": False,
        "param_without_looking": True,
    }
    assert ended == begun | {"event": "audit.order_ended", "outcome": "ok"}
    assert (deleting["order"], deleting["param_partition"]) == ("delete_segment", str(ORDERS))
    assert deleting["param_segment_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert deleted["outcome"] == "ok"


async def test_an_order_that_is_refused_or_breaks_is_logged_with_that(path, monkeypatch):
    async with daemon(path) as it, AsyncClient(path) as client:

        async def refuse(*_, **__):
            raise InvalidArgument("nothing is missing")

        monkeypatch.setattr(it.operator, "partition_accept_loss", refuse)
        with structlog.testing.capture_logs() as caught, pytest.raises(InvalidArgument):
            await client.partition_accept_loss(3)
    assert [each.get("outcome") for each in lines(caught)] == [None, "invalid_argument"]


async def test_a_brokers_delete_is_one_line_with_the_segment_and_its_end(path, monkeypatch):
    options = ClientOptions(
        client="kafka-plugin", role="broker", part="storage", broker_id=1, broker_incarnation=7
    )
    with structlog.testing.capture_logs() as caught:
        async with daemon(path), AsyncClient(path, options) as client:
            deleted = decode_segment(started(3, 0, 9))
            await client.delete_log_segment_data(deleted)

            async def refuse(*_, **__):
                raise StorageUnavailable("no")

            monkeypatch.setattr(FakeCopier, "delete_log_segment_data", refuse)
            with pytest.raises(StorageUnavailable):
                await client.delete_log_segment_data(deleted)
    done, failed = lines(caught)
    assert done == {
        "event": "audit.segment_deleted",
        "log_level": "info",
        "uid": os.getuid(),
        "pid": os.getpid(),
        "client": "kafka-plugin",
        "partition": str(deleted.partition),
        "segment_id": uuid_text(deleted.segment_id),
        "outcome": "ok",
    }
    assert failed == done | {"outcome": "storage_unavailable"}


async def test_what_changes_nothing_is_no_order(path):
    with structlog.testing.capture_logs() as caught:
        async with daemon(path), AsyncClient(path) as client:
            await client.status()
            await client.partitions()
    assert not lines(caught)


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_every_method_that_changes_something_is_an_order_of_operators(method):
    row = api.METHODS[method]
    assert is_order(method, Role.OPERATOR) == (row.right is not R.READ)
    assert is_order(method, Role.BROKER) == (row.right is R.ADMIN)


@pytest.mark.parametrize("there", [False, True])
def test_what_a_command_does_without_a_daemon_is_told_to_the_systems_log(
    tmp_path, monkeypatch, there
):
    told = list[str]()
    monkeypatch.setattr(syslog, "syslog", lambda _, line: told.append(line))
    monkeypatch.setenv("SUDO_USER", "anna")
    directory = tmp_path / "log"
    if there:
        directory.mkdir()
        (directory / "identity.json").write_text(
            '{"format": 1, "cluster_id": null, "topic_id": "AAAAAAAAQACAAAAAAAAABg",'
            ' "partition_count": 1}'
        )
    run = CliRunner().invoke(main, ["log", "seal", str(directory)])
    assert (run.exit_code == 0) is there, run.output
    begun, ended = told
    assert begun.startswith("audit.order_begun ")
    assert f"uid={os.getuid()} pid={os.getpid()} client='rlmm log seal, version " in begun
    assert "(sudo of anna)" in begun
    assert f"directory='{directory}'" in begun
    assert ended.startswith("audit.order_ended outcome=" + ("ok " if there else ""))


def offline_orders(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the commands that write without a daemon, but those of `reconcile`: it has a log."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        options = {option.name for option in command.params} if command is not None else set()
        if isinstance(command, click.Group):
            yield from offline_orders(command, (*words, name))
        elif "execute" in options and "socket" not in options and "reconcile" not in words:
            yield (*words, name)


def test_every_command_that_writes_without_the_daemon_tells_the_systems_log():
    found = {*offline_orders(main)} | {("log", "seal")}
    assert {
        ("log", "copy"),
        ("storage", "rebuild-marker"),
        ("log", "restore"),
        ("log", "name"),
    } <= found
    for words in found:
        command: click.Command | None = main
        for word in words:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
        assert command is not None
        assert command.callback is not None
        assert "with order(" in inspect.getsource(inspect.unwrap(command.callback)), words
