from pathlib import Path

import pytest

from rlmm_daemon.config import Secret, read_secret
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import looks_secret


def read(*, file: object = None, env: str | None = None, **environ: str) -> Secret | None:
    return read_secret("s3.key", file=str(file) if file else None, env=env, environ=environ)


def test_a_secret_never_shows_itself():
    secret = Secret("hunter2")
    assert f"{secret}{secret!r}{[secret]}" == "[hidden][hidden][[hidden]]"
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2") != Secret("other")


def test_a_secret_comes_from_a_file_without_its_last_line_break(tmp_path: Path):
    (tmp_path / "key").write_text("hunter2\n")
    assert read(file=tmp_path / "key") == Secret("hunter2")


def test_a_secret_comes_from_the_environment():
    assert read(env="KEY", KEY="hunter2") == Secret("hunter2")
    assert read() is None


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff", b"x" * 70_000])
def test_a_file_without_a_usable_secret_is_refused_by_its_key(tmp_path: Path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"s3\.key_file"):
        read(file=tmp_path / "key")


def test_two_sources_or_an_absent_variable_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="both set"):
        read(file=tmp_path, env="KEY")
    with pytest.raises(ConfigError, match="KEY, which is not in the environment"):
        read(env="KEY")


@pytest.mark.parametrize("name", ["password", "SecretKey", "access_key", "jaas_config", "token"])
def test_names_that_call_for_hiding(name: str):
    assert looks_secret(name)
    assert not looks_secret(f"{name}_file")
    assert not looks_secret(f"{name}_env")
