"""Scenario files: a command, `----`, what it answers; blocks end at an empty line, `#` comments."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MARK = "----"


@dataclass(slots=True)
class Block:
    """One command, the comment lines before it, and what it is expected to answer."""

    comments: list[str]
    command: str
    expected: str
    line: int

    def text(self, answer: str) -> str:
        return "\n".join([*self.comments, self.command, MARK, *answer.splitlines()]) + "\n"


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    comments: list[str] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if line.startswith("#") or not line.strip():
            comments.append(line)
            continue
        _, mark = next(lines)
        assert mark == MARK, f"line {number}: {line!r} is not followed by {MARK}"
        expected: list[str] = []
        for _, answer in lines:
            if not answer.strip():
                break
            expected.append(answer)
        blocks.append(Block(comments, line, "\n".join(expected), number))
        comments = []
    return blocks


async def rewritten(blocks: list[Block], run: Callable[[str], Awaitable[str]]) -> str:
    """Return the file as its commands answer now."""
    return "\n".join([block.text(await run(block.command)) for block in blocks])
