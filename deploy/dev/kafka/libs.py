"""Where Kafka's jars are: fetched once from Maven Central, as `pom.xml` names them."""  # noqa: INP001 - scripts, no package

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HERE.parents[2]
#: Set it to use a directory of jars that is there already.
LIBS_VARIABLE: Final = "RLMM_TEST_KAFKA_LIBS"
_FETCH_SECONDS: Final = 600


def directory() -> Path:
    """Return the directory that the jars are, or will be, in."""
    given = os.environ.get(LIBS_VARIABLE)
    return Path(given) if given else REPOSITORY / "var" / "kafka-libs"


def present() -> bool:
    """Return whether the jars are there."""
    return any(directory().glob("kafka_2.13-*.jar"))


def fetched() -> Path:
    """Return the directory of the jars, which are fetched (about 60 MB) if they are missing.

    Raises:
        RuntimeError: they are missing and can't be fetched; the text says what to do.
    """
    target = directory()
    if present():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(
            f"no Kafka in {target}: install Maven (apt-get install maven) to have it fetched,"
            f" or point {LIBS_VARIABLE} to a directory of its jars"
        )
    partly = target.with_name(f"{target.name}.{os.getpid()}")
    copy = f"-DoutputDirectory={partly}"
    command = [maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run(  # noqa: S603 - our own arguments
        [*command, copy, "-DincludeScope=runtime"], check=True, timeout=_FETCH_SECONDS
    )
    shutil.rmtree(target, ignore_errors=True)
    partly.rename(target)
    return target


if __name__ == "__main__":
    print(fetched())  # noqa: T201 - that is the command's answer
