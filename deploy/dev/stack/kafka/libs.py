"""Where Kafka's jars are: fetched once from Maven Central, as `pom.xml` names them."""  # noqa: INP001 - scripts, no package

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HERE.parents[3]
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


def archive() -> Path:
    """Return where the class-data archive for these jars and this JDK is, if one was made."""
    java = Path(os.path.realpath(shutil.which("java") or "java"))
    parts = [java.parent.parent / "lib" / "modules", *sorted(directory().glob("*.jar"))]
    stats = [(part, part.stat()) for part in parts if part.exists()]
    known = [f"{part} {stat.st_size} {stat.st_mtime_ns}" for part, stat in stats]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    return REPOSITORY / "var" / "kafka-classes" / f"{digest}.jsa"


def fetched() -> Path:
    """Return the directory of the jars, which are fetched (about 60 MB) if they are missing.

    Raises:
        RuntimeError: they are missing and can't be fetched; the text says what to do.
    """
    target = directory()
    if not present():
        _fetch(target)
    return target


def own_tests() -> Path:
    """Return a directory of the same jars, of Kafka's own tests, and of what runs those."""
    target = REPOSITORY / "var" / "kafka-own-tests"
    if not target.exists():
        _fetch(target, "-Pown-tests")
    return target


def without_pre_vote() -> Path:
    """Return a directory of the jars of Kafka 3.9, the last one whose quorum knows no pre-vote."""
    target = REPOSITORY / "var" / "kafka-libs-3.9"
    if not target.exists():
        _fetch(target, "-Dkafka.version=3.9.1")
    return target


def _fetch(target: Path, *options: str) -> None:
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
        [*command, *options, copy, "-DincludeScope=runtime"], check=True, timeout=_FETCH_SECONDS
    )
    shutil.rmtree(target, ignore_errors=True)
    partly.rename(target)


if __name__ == "__main__":
    print(fetched())  # noqa: T201 - that is the command's answer
