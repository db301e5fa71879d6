"""The repository's address: it stands in _config.yml, and `python -m sgemm_lab repo URL` moves it.

Two kinds of files hold a copy, since they are read without the rest: the first cell of every
notebook, which Colab opens alone, and CITATION.cff. What else needs the address asks `book`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from sgemm_lab import book
from sgemm_lab.paths import ROOT

UNSET = (
    "This copy of the book has no address yet, so the pages have no buttons that lead to Colab or "
    "to the repository. Set it: python -m sgemm_lab repo https://github.com/NAME/REPOSITORY"
)
_ADDRESS = re.compile(r"https://github\.com/[A-Za-z\d](?:-?[A-Za-z\d]){0,38}/[\w.-]{1,100}")


def valid(url: str) -> str:
    """`url` as it is written down, without a last slash or .git. ValueError for anything but the
    https address of a repository on GitHub."""
    address = url.strip().rstrip("/").removesuffix(".git")
    if not _ADDRESS.fullmatch(address) or book.PLACEHOLDER in address:
        raise ValueError(
            f"{url!r} is no address of a repository on GitHub, which Colab opens notebooks from. "
            "It looks like https://github.com/NAME/REPOSITORY."
        )
    return address


def move(url: str, root: Path = ROOT) -> list[Path]:
    """Writes the address wherever it must stand under `root`; the files that changed.

    Raises ValueError as `valid` does, and where _config.yml or CITATION.cff has no line for it.
    """
    address = valid(url)
    changed = [
        root / name for name, place in _PLACES.items() if _rewrite(root / name, place, address)
    ]
    return changed + [path for path in book.notebooks(root) if _first_cell(path, root)]


# file -> (the line that holds the address, what that line becomes)
_PLACES = {
    "_config.yml": (r"^  url: .*$", "  url: {}"),
    "CITATION.cff": (r"^(?:# )?repository-code:.*$", "repository-code: {}"),
}


def _rewrite(path: Path, place: tuple[str, str], address: str) -> bool:
    line, text = place
    old = path.read_text(encoding="utf-8")
    new, found = re.subn(line, text.format(address), old, flags=re.MULTILINE)
    if found != 1:
        raise ValueError(f"{path.name} has {found} lines for the address; one is wanted: {line}")
    path.write_text(new, encoding="utf-8")
    return new != old


def _first_cell(path: Path, root: Path) -> bool:
    nb = book.with_colab_cell(book.read(path), root)
    new = book.dumps(nb) != path.read_bytes()
    if new:
        book.write(nb, path)
    return new


def left(address: str, root: Path = ROOT) -> list[str]:
    """Where `address` still stands in a tracked file, as "file:line"."""
    found = subprocess.run(
        ["git", "grep", "-nIF", address], cwd=root, capture_output=True, text=True, check=False
    )
    return [":".join(line.split(":", 2)[:2]) for line in found.stdout.splitlines()]


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab repo`: the repository's address; with a URL, sets it everywhere."""
    parser = argparse.ArgumentParser(prog="python -m sgemm_lab repo", description=main.__doc__)
    parser.add_argument("url", nargs="?", help="https://github.com/NAME/REPOSITORY")
    given = parser.parse_args(argv)
    before = book.repository()
    if given.url is None:
        print(before or UNSET)
        return 0
    try:
        changed = move(given.url)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for path in changed:
        print(f"changed {book.show(path)}")
    now = book.repository()
    print(f"The repository's address is {now}{'' if changed else ', as it was'}.")
    if before and before != now and (rest := left(before)):
        print(f"{before} still stands in {', '.join(rest)}. Change it there by hand.")
    return 0
