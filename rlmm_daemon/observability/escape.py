"""Foreign strings (topic names, keys, paths, peers' messages) made safe to show."""


def escape(text: str) -> str:
    r"""Return the text with everything that does not print as `\x1b`, `\n`, `\u202e`.

    A name can then neither move the cursor, nor forge a second line, nor turn the reading
    direction. Printable text of any script stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def escape_lines(text: str) -> str:
    """Return the text escaped line by line, for tracebacks, whose line breaks are our own."""
    return "\n".join(escape(line) for line in text.split("\n"))
