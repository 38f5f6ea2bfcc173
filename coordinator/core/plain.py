"""Text from elsewhere, made harmless for a terminal.

Owns the one rule. What a daemon, a server or a training says may hold anything; no control
character of it may move a cursor, change a colour or hide what follows.
"""


def plain(text: str) -> str:
    r"""`text` with what cannot be printed written as an escape: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def plain_lines(text: str) -> str:
    r"""The same for text of several lines: its `\n` stay."""
    return "\n".join(plain(line) for line in text.split("\n"))
