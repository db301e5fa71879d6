"""Are the notebooks as they must be committed? Told without executing them, in two seconds.

Editors leave their own traces: ids of widgets, timestamps, metadata; Colab also drops the ids of
cells and saves widgets in a form that the pages cannot show. `fix` removes what can be removed
without executing anything, and what cannot is told with the command that helps. Whether the
outputs are those that the cells give is another question: `python -m sgemm_lab run --check`.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from sgemm_lab import book

_NOT_CANONICAL = (
    "is not in the form that is committed (ids, metadata, order of keys or white space): "
    "python -m sgemm_lab notebooks --fix"
)


def problems(path: Path) -> list[str]:
    """What is wrong with the notebook at `path` as it stands, one sentence each, with its name."""
    nb = book.read(path)
    found = book.problems(nb)
    if not found and book.dumps(book.canonical(nb)) != path.read_bytes():
        found = [_NOT_CANONICAL]
    return [f"{book.show(path)}: {problem}" for problem in found]


def fix(path: Path) -> bool:
    """Brings the notebook at `path` into the form that is committed; whether anything changed.

    Leaves a notebook alone whose cells were not all executed, from the first to the last.
    """
    nb = book.read(path)
    if not executed(nb):
        return False
    nb = book.canonical(book.with_colab_cell(with_state(nb)))
    changed = book.dumps(nb) != path.read_bytes()
    if changed:
        book.write(nb, path)
    return changed


def executed(nb: NotebookNode) -> bool:
    """Whether every code cell was executed, from first to last; the Colab cell may be new."""
    counts = [cell.execution_count for cell in book.code_cells(nb) if cell.id != "colab"]
    return None not in counts and counts == sorted(set(counts))


def with_state(nb: NotebookNode) -> NotebookNode:
    """`nb` with its widgets where the pages look for them: Colab leaves out the key `state`."""
    models = nb.metadata.get("widgets", {}).get(book.WIDGET_STATE)
    if models and "state" not in models:
        whole = {"state": models, "version_major": 2, "version_minor": 0}
        nb.metadata.widgets[book.WIDGET_STATE] = whole
    return nb


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab notebooks`: 0 if all are as they must be committed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m sgemm_lab notebooks", description=main.__doc__)
    parser.add_argument("paths", nargs="*", help="notebooks or chapters; all of them by default")
    parser.add_argument("--fix", action="store_true", help="mend what needs no execution")
    given = parser.parse_args(argv)
    try:
        wrong = told(map(book.find, given.paths) if given.paths else book.notebooks(), given.fix)
    except book.NotebookError as error:
        wrong = [str(error)]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return int(bool(wrong))


def told(paths: Iterable[Path], mend: bool) -> list[str]:
    found = []
    for path in paths:
        if mend and fix(path):
            print(f"fixed {book.show(path)}")
        found += problems(path)
    return found
