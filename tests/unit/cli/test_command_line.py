"""`rlmm` itself: fast help, exit codes, the two commands that need no daemon."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import COMMANDS, CommandRow, Exit, LazyGroup, exit_code
from rlmm_daemon.cli.options import Target, daemon_options, find_socket
from rlmm_daemon.cli.output import cell, show_json, show_table
from rlmm_daemon.domain.errors import ConfigError, DaemonUnreachable, NotReady, RlmmError

DEMO = str(Path(__file__).parents[3] / "config" / "rlmm.toml")


def test_help_imports_no_command_and_no_heavy_library():
    code = (
        "import sys\nfrom rlmm_daemon.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.split())
    heavy = {"asyncio", "structlog", "rich", "msgspec", "aiohttp", "prometheus_client", "uvloop"}
    assert not loaded & heavy
    assert all(name in run.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_row_of_the_table_is_a_command_of_that_name(name: str):
    assert isinstance(main, LazyGroup)
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.help


def test_check_config_prints_what_is_in_force():
    run = CliRunner().invoke(main, ["check-config", DEMO, "--set", "copy.parallelism=9"])
    assert run.exit_code == 0
    assert "parallelism = 9" in run.stdout
    run = CliRunner().invoke(main, ["check-config", DEMO, "--json"])
    assert json.loads(run.stdout)["daemon"]["broker_id"] == 1


def test_a_bad_configuration_exits_with_78_and_names_each_mistake(tmp_path: Path):
    bad = tmp_path / "bad.toml"
    bad.write_text("[daemon]\nbroker_ids = 1\n")
    for command in (["check-config", str(bad)], ["run", "--config", str(bad)]):
        run = CliRunner().invoke(main, command)
        assert run.exit_code == 78
        assert "did you mean daemon.broker_id?" in run.stderr
        assert "the table [event_log] is missing" in run.stderr
    run = CliRunner().invoke(main, ["check-config", "--json", str(bad)])
    assert json.loads(run.stderr)["error"] == "config_error"


def test_wrong_usage_exits_with_2():
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(main, ["run"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(DaemonUnreachable(), 3), (ConfigError(), 78), (NotReady(), 1), (RlmmError("x"), 1)],
)
def test_each_branch_of_errors_has_its_exit_code(error: RlmmError, code: int):
    assert exit_code(error) == code == Exit(code)


def test_the_socket_is_found_by_option_then_environment_then_default():
    assert find_socket("/a", {"RLMM_SOCKET": "/b"}) == "/a"
    assert find_socket(None, {"RLMM_SOCKET": "/b"}) == "/b"
    assert find_socket(None, {}) == "/run/rlmm/rlmm.sock"
    assert find_socket("/" + "é" * 53, {})
    with pytest.raises(click.UsageError, match="109 bytes long"):
        find_socket("/" + "é" * 54, {})


def test_the_shared_options_arrive_as_one_target_and_errors_follow_json(monkeypatch):
    seen: list[Target] = []

    @click.command("ask")
    @daemon_options
    def ask(*, target: Target) -> None:
        seen.append(target)
        raise DaemonUnreachable("no \x1b[2J answer", socket=target.socket)

    monkeypatch.setitem(sys.modules, "planted", SimpleNamespace(command=ask))
    group = LazyGroup("rlmm", rows={"ask": CommandRow("planted", "")})
    run = CliRunner().invoke(group, ["ask", "--socket", "/s", "--timeout", "2"])
    assert run.exit_code == 3
    assert run.stderr == "rlmm: no \\x1b[2J answer\n"
    assert seen == [Target(socket="/s", json=False, timeout_seconds=2.0)]
    run = CliRunner().invoke(group, ["ask", "--json", "--socket", "/s"])
    assert json.loads(run.stderr)["fields"] == {"socket": "/s"}
    assert CliRunner().invoke(group, ["ask", "--timeout", "0"]).exit_code == 2


HOSTILE = ["no", "1:30", "a: b # c", "\x1b[2J", "- x", "\u202e", 12, 1.5, None, True, {}, b"\0"]


def test_yaml_is_the_same_values_as_json_a_document_for_each_line(monkeypatch):
    @click.command("ask")
    @daemon_options
    def ask(*, target: Target) -> None:
        assert target.json
        show_json({"said": HOSTILE})
        show_json({"record": msgspec.Raw(b'{"a": 1}')})
        raise DaemonUnreachable("no answer", socket=target.socket)

    monkeypatch.setitem(sys.modules, "planted", SimpleNamespace(command=ask))
    group = LazyGroup("rlmm", rows={"ask": CommandRow("planted", "")})

    def ran(*words: str) -> Any:
        return CliRunner().invoke(group, ["ask", "--socket", "/s", *words])

    as_json, as_yaml = ran("--output", "json"), ran("--output", "yaml")
    assert as_json.stdout == ran("--json").stdout == ran("--json", "--output", "json").stdout
    lines = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert list(yaml.safe_load_all(as_yaml.stdout)) == lines
    assert yaml.safe_load(as_yaml.stderr) == json.loads(as_json.stderr)
    assert "\x1b" not in as_yaml.stdout
    assert as_yaml.exit_code == 3
    assert ran("--json", "--output", "yaml").exit_code == 2
    assert "exclude each other" in ran("--json", "--output", "table").stderr


def test_yaml_is_loaded_only_for_whom_asks_for_it():
    code = (
        "import sys; from click.testing import CliRunner; from rlmm_daemon.cli import main;"
        "ran = CliRunner().invoke(main, ['check-config', '--json', '/nowhere']);"
        "assert ran.exit_code == 78, ran; assert 'yaml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_table_in_a_pipe_is_neither_cut_nor_read_as_markup(capsys):
    show_table(["name", "n"], [["[red]a\x1b" + "x" * 200, 12_345], [None, True]])
    out = capsys.readouterr().out
    assert "[red]a\\x1b" + "x" * 200 in out
    assert "12,345" in out
    assert "\x1b" not in out
    assert cell(None) == "-"
