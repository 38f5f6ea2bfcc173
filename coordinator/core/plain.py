"""Escapes text from other sources for a terminal.

Owns this rule. Text of a daemon, a server or a training can contain anything; no control character
in it may move the cursor, change a color or hide text.
"""


def plain(text: str) -> str:
    r"""`text` with unprintable characters as escapes: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def plain_lines(text: str) -> str:
    r"""The same for text with several lines: `\n` is kept."""
    return "\n".join(plain(line) for line in text.split("\n"))
