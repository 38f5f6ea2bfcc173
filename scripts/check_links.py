#!/usr/bin/env python3
"""Finds dead links in the Markdown files of a tree: of this one, or of the one that is named.

A relative link must lead to an existing file, and its anchor to a heading of that file, spelled as
GitHub spells anchors. Links to other hosts are not fetched: a check must not fail because of them.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
HTML_ANCHOR = re.compile(r"<a\s[^>]*(?:id|name)=\"([^\"]+)\"")
FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1[`~]*\s*$|\Z)", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")


def main(root: Path) -> int:
    """Print each dead link below `root` as FILE:LINE and return the exit code."""
    dead = [problem for file in markdown_files(root) for problem in dead_links(root, file)]
    for problem in dead:
        print(problem, file=sys.stderr)
    return 1 if dead else 0


def markdown_files(root: Path) -> list[Path]:
    """Files that git knows or would add; without git (an sdist) all that are not hidden."""
    if shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
        listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            names = [name for name in listing.stdout.split("\0") if name]
            return sorted({root / name for name in names if (root / name).is_file()})
    found = (path.relative_to(root) for path in root.rglob("*.md"))
    return sorted(root / path for path in found if not any(p.startswith(".") for p in path.parts))


def dead_links(root: Path, file: Path) -> Iterator[str]:
    """Yield one line for each link of `file` that leads nowhere."""
    text = blanked(INLINE_CODE, without_blocks(file))
    for match in [*LINK.finditer(text), *REFERENCE.finditer(text)]:
        problem = fault(root, file, match[1])
        if problem:
            line = text.count("\n", 0, match.start(1)) + 1
            yield f"{file.relative_to(root)}:{line}: {match[1]}: {problem}"


def without_blocks(file: Path) -> str:
    """The text with its code blocks blanked, each character in its old place."""
    return blanked(FENCED, file.read_text(encoding="utf-8"))


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Overwrite what `pattern` finds with spaces; line breaks stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def fault(root: Path, file: Path, target: str) -> str:
    """Say what is wrong with a link, or return an empty string."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", target):
        return ""
    name, _, anchor = target.partition("#")
    path = (file.parent / name).resolve() if name else file
    if not path.is_relative_to(root):
        return "leads out of this tree"
    if not path.exists():
        return "no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return "no such heading"
    return ""


def anchors(file: Path) -> set[str]:
    """All anchors of a Markdown file: its headings and explicit ones."""
    text = without_blocks(file)
    found = set(HTML_ANCHOR.findall(text))
    for heading in HEADING.findall(text):
        found.add(numbered(slug(heading), found))
    return found


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, punctuation gone, spaces to hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def numbered(anchor: str, taken: set[str]) -> str:
    """Tell repeated headings apart as GitHub does: name, name-1, name-2."""
    name, count = anchor, 0
    while name in taken:
        count += 1
        name = f"{anchor}-{count}"
    return name


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here))
