"""Processes that are not our children, seen through /proc."""

from pathlib import Path


def ended(pid: int) -> bool:
    """Return whether it is gone, or waits only for its parent to hear of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid: int) -> list[int]:
    """Return those of all its threads: the kernel counts them by thread."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]
