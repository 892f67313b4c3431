"""The archive of a support bundle: texts without secrets, each bounded, and an index of them."""

import io
import os
import tarfile
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from rlmm_daemon.core import phrases
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.observability.escape import escape
from rlmm_daemon.observability.scrub import scrub

#: Of each file, and of all of them before they are packed.
FILE_BYTES_MAX: Final = 2 * 1024 * 1024
BUNDLE_BYTES_MAX: Final = 32 * 1024 * 1024
INDEX: Final = "index.txt"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a bundle: how it is called, what it is, and who tells its text."""

    name: str
    about: str
    tell: Callable[[], str]
    #: Which end stays of a text that is too long.
    keep: Literal["head", "tail"] = "head"
    seconds: float = 30.0


class BundleFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it came out; without text, why there is none."""

    name: str
    about: str
    text: str | None = None
    trouble: str | None = None

    @property
    def size(self) -> int:
        """Bytes in the archive."""
        return 0 if self.text is None else len(self.text.encode())


def gather(steps: Sequence[Step], known: Collection[str]) -> list[BundleFile]:
    """Take every step's text; one that fails or hangs leaves a word in its place.

    `known` are secrets by their values.
    """
    entries, left = list[BundleFile](), BUNDLE_BYTES_MAX
    for step in steps:
        entry = _taken(step, known, min(FILE_BYTES_MAX, left))
        left -= entry.size
        entries.append(entry)
    return entries


def _taken(step: Step, known: Collection[str], bytes_max: int) -> BundleFile:
    told, failed = list[str](), list[BaseException]()

    def work() -> None:
        try:
            told.append(step.tell())
        except BaseException as error:  # noqa: BLE001 - it is the entry's word
            failed.append(error)

    # A thread that nobody waits for: what hangs on a disk must not hold up the rest.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(step.seconds)
    if not told:
        why = _words(failed[0]) if failed else f"no answer within {step.seconds:g} s"
        return BundleFile(name=step.name, about=step.about, trouble=scrub(escape(why), known))
    # Names of files need not be text.
    data, trouble = told[0].encode(errors="backslashreplace"), None
    text = data.decode()
    # Cut in front of what is scrubbed, but not in the midst of a line that may name a secret.
    if len(data) > bytes_max:
        whole, data = len(data), data[:bytes_max] if step.keep == "head" else data[-bytes_max:]
        lines = data.decode(errors="replace").split("\n")
        text = "\n".join(lines[:-1] if step.keep == "head" else lines[1:])
        end = "first" if step.keep == "head" else "last"
        trouble = f"cut: the {end} {phrases.size(bytes_max)} of {phrases.size(whole)}"
    return BundleFile(name=step.name, about=step.about, text=scrub(text, known), trouble=trouble)


def _words(error: BaseException) -> str:
    if isinstance(error, RlmmError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def index(entries: Sequence[BundleFile], head: str) -> str:
    """Return the index: what is in the bundle, what is not, and why."""
    width = max(len(entry.name) for entry in entries)
    lines = [head.rstrip(), "", f"{'file':<{width}}  {'bytes':>10}  what it is"]
    for entry in entries:
        size = "-" if entry.text is None else f"{entry.size:,}"
        why = f" ({entry.trouble})" if entry.trouble else ""
        lines.append(f"{entry.name:<{width}}  {size:>10}  {entry.about}{why}")
    return "\n".join(lines) + "\n"


def write(path: Path, entries: Sequence[BundleFile], head: str, *, at_seconds: float) -> int:
    """Write the archive, for its owner alone, under its name only when it is whole.

    Returns its size.

    Raises:
        OSError: it could not be written, or there is a file of that name.
    """
    folder = path.name.removesuffix(".tar.gz")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with (
            os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            texts = {INDEX: index(entries, head)}
            texts |= {entry.name: entry.text for entry in entries if entry.text is not None}
            for name, text in texts.items():
                data = text.encode()
                info = tarfile.TarInfo(f"{folder}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(at_seconds)
                archive.addfile(info, io.BytesIO(data))
        os.link(temporary, path)  # fails where there is one, unlike a rename
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size
