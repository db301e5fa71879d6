"""The repository's address and the revision that readers get: both stand in _config.yml, and
`python -m sgemm_lab repo URL --revision TAG` writes them.

Two kinds of files hold a copy, since they are read without the rest: the first cell of every
notebook, which Colab opens alone, and CITATION.cff. What else needs them asks `book`.
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
_REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


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
    return _write(_URL, valid(url), root)


def pin(revision: str, root: Path = ROOT) -> list[Path]:
    """Writes the branch or tag that the pages' buttons open and that the first cells fetch; the
    files that changed. Raises ValueError for what is no name of one."""
    if not _REVISION.fullmatch(revision):
        raise ValueError(f"{revision!r} is no branch or tag. It looks like main or v1.2.3.")
    return _write(_BRANCH, revision, root)


# file -> (the line that holds it, what that line becomes)
_URL = {
    "_config.yml": (r"^  url: .*$", "  url: {}"),
    "CITATION.cff": (r"^(?:# )?repository-code:.*$", "repository-code: {}"),
}
_BRANCH = {"_config.yml": (r"^  branch: .*$", "  branch: {}")}


def _write(places: dict[str, tuple[str, str]], value: str, root: Path) -> list[Path]:
    changed = [root / name for name, place in places.items() if _rewrite(root / name, place, value)]
    return changed + [path for path in book.notebooks(root) if _first_cell(path, root)]


def _rewrite(path: Path, place: tuple[str, str], value: str) -> bool:
    line, text = place
    old = path.read_text(encoding="utf-8")
    new, found = re.subn(line, text.format(value), old, flags=re.MULTILINE)
    if found != 1:
        raise ValueError(f"{path.name} has {found} lines for {value}; one is wanted: {line}")
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
    """`python -m sgemm_lab repo`: the repository's address and the branch or tag that readers get;
    sets what is given, wherever it stands."""
    parser = argparse.ArgumentParser(prog="python -m sgemm_lab repo", description=main.__doc__)
    parser.add_argument("url", nargs="?", help="https://github.com/NAME/REPOSITORY")
    parser.add_argument(
        "--revision", metavar="NAME", help="the branch or tag that readers get: main, v1.2.3"
    )
    given = parser.parse_args(argv)
    before = book.repository()
    if given.url is None and given.revision is None:
        print(f"{before}, {book.revision()}" if before else UNSET)
        return 0
    try:
        changed = [] if given.url is None else move(given.url)
        changed += [] if given.revision is None else pin(given.revision)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for path in dict.fromkeys(changed):
        print(f"changed {book.show(path)}")
    now, still = book.repository(), "" if changed else ", as before"
    print(f"Readers get {book.revision()} of {now}{still}." if now else UNSET)
    if before and before != now and (rest := left(before)):
        print(f"{before} still stands in {', '.join(rest)}. Change it there by hand.")
    return 0
