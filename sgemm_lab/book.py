"""Executes the notebooks, writes them in one canonical form, and checks what is committed.

A notebook is committed with its outputs, and executing it again gives the same bytes. That takes
three things: a fresh kernel without a GPU for every notebook (`execute`), a form that drops what
differs between two runs, such as widget ids and timestamps (`canonical`), and a check that says
in which cell the bytes differ, and how (`run(check=True)`).
"""

import argparse
import asyncio
import difflib
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import indent

import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from sgemm_lab import beforehand
from sgemm_lab.paths import BOOK, ROOT

IGNORE = "nbval-ignore-output"  # what this cell prints depends on the machine
TAGS = {
    IGNORE,
    "raises-exception",
    "remove-cell",
    "remove-input",
    "hide-cell",
    "hide-input",
    "hide-output",
}
MAX_LINES = 20
TIMEOUT = 120  # seconds a cell
AT_ONCE = 2  # notebooks
README_CHART = BOOK / "_static" / "ladder.png"  # drawn from the records, as in the chapters

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# The first cell of every notebook. Colab opens the notebook alone: fetch the rest and enter it.
# What fits the notebook is the branch or tag that it was opened from: the one in _config.yml, which
# the pages' buttons take, too. On main that is main; a release pins its own tag. The clone gets its
# name when it is whole, so that half of one is never entered. Where it lies is remembered, since a
# second run begins in another folder than the first, which is Colab's /content.
COLAB = """\
import sys

if "google.colab" in sys.modules:  # only on Colab, which opens this notebook without the book
    import os
    import shutil
    import subprocess

    url, revision = "{url}", "{revision}"
    clone = os.environ.setdefault("SGEMM_LAB_CLONE", os.path.abspath("{folder}"))
    if not os.path.isdir(clone):
        part = f"{{clone}}.part"  # gets its name when it is whole
        shutil.rmtree(part, ignore_errors=True)
        fetch = ["git", "clone", "-q", "--depth", "1", "--branch", revision, url, part]
        if (git := subprocess.run(fetch, stderr=subprocess.PIPE, text=True)).returncode:
            raise RuntimeError(f"{{url}} can't be fetched. Run it again. Git says: {{git.stderr}}")
        os.rename(part, clone)
    os.chdir(f"{{clone}}/book")
    sys.path[:] = dict.fromkeys([clone, *sys.path])
    from sgemm_lab.doctor import card
    print(card())"""


# The same while the repository has no address.
NOWHERE = """\
import sys

if "google.colab" in sys.modules:  # only on Colab, which opens this notebook without the book
    raise RuntimeError(
        "This copy of the book does not know its address, so it cannot be fetched. Whoever "
        "published it sets it with: python -m sgemm_lab repo https://github.com/NAME/REPOSITORY"
    )"""
COLABS_OWN = "application/vnd.google.colaboratory."  # what it adds to outputs for its own use
BADGE = "view-in-github"  # the id of the cell that Colab puts in front when it saves to GitHub
PLACEHOLDER = "/OWNER/"  # in _config.yml's address, as long as there is none


class NotebookError(Exception):
    """A notebook that cannot be executed; the message names the notebook and the cell."""


def repository(root: Path = ROOT) -> str | None:
    """The repository's address, as _config.yml has it (the one place); None as long as there is
    none."""
    url = yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]
    return None if PLACEHOLDER in url else url


def revision(root: Path = ROOT) -> str:
    """The branch or tag that notebooks are opened from, as _config.yml has it."""
    return yaml.safe_load((root / "_config.yml").read_text())["repository"]["branch"]


def colab_cell(root: Path = ROOT) -> NotebookNode:
    """The cell that every notebook begins with; see `COLAB` and `NOWHERE`."""
    url, at = repository(root), revision(root)
    source = NOWHERE
    if url:
        folder = f"{url.rsplit('/', 1)[-1]}-{at}".replace("/", "-")  # as GitHub calls its archives
        source = COLAB.format(url=url, revision=at, folder=folder)
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["remove-cell"]})
    cell.id = "colab"
    return cell


def notebooks(root: Path = ROOT) -> list[Path]:
    """Every notebook of the book, in the order of its number."""
    found = (root / "book").rglob("*.ipynb")
    return sorted(p for p in found if ".ipynb_checkpoints" not in p.parts)


def read(path: Path) -> NotebookNode:
    """The notebook in `path`, nbformat 4.5. A cell without an id gets the one that Colab put into
    its metadata, else one from its position.

    Raises `NotebookError` when the file is not a notebook."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        for number, cell in enumerate(raw["cells"], 1):
            saved = cell["metadata"].get("id")  # by Colab
            cell.setdefault("id", saved or f"cell-{number:02d}")
        raw["nbformat_minor"] = max(5, raw["nbformat_minor"])
        return nbformat.reads(json.dumps(raw), as_version=4)
    except (ValueError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{show(path)} is not a notebook: {error}") from None


# -- the canonical form ---------------------------------------------------------------------------


def canonical(nb: NotebookNode) -> NotebookNode:
    """A copy of `nb` without anything that differs between two executions of the same code.

    Kept of the metadata: the kernel's name, the language's name, tags, widget state. Code cells
    count from 1. Neighbouring stream outputs become one each, standard output first. Widget ids
    are numbered, those shown by a cell first, then in the order of creation; widgets that no cell
    shows are dropped, and so are nulls (the front end knows the defaults). Applying it twice
    changes nothing.
    """
    nb = nbformat.from_dict(json.loads(json.dumps(nb)))
    widgets = nb.metadata.get("widgets", {}).get(WIDGET_STATE)
    nb.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        }
    )
    for count, cell in enumerate(code_cells(nb), 1):
        cell.execution_count = count
        cell.outputs = merge_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            for kind in [kind for kind in output.get("data", {}) if kind.startswith(COLABS_OWN)]:
                del output.data[kind]
    for cell in nb.cells:
        cell.metadata = {"tags": sorted(tags(cell))} if tags(cell) else {}
        cell.source = cell.source.rstrip("\n")
    if widgets is not None and "state" in widgets:
        kept = shown_models(widgets["state"], shown(nb))
        widgets["state"] = {key: drop_nulls(widgets["state"][key]) for key in kept}
    if widgets is not None and widgets.get("state") != {}:
        nb.metadata["widgets"] = {WIDGET_STATE: widgets}
    return nbformat.from_dict(number_widgets(nb))


def merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """`outputs` with neighbouring streams joined by name, stdout before stderr."""
    merged: list[NotebookNode] = []
    run: dict[str, str] = {}

    def flush() -> None:
        for name in sorted(run, reverse=True):
            merged.append(nbformat.v4.new_output("stream", name=name, text=run[name]))
        run.clear()

    for output in outputs:
        if output.output_type == "stream":
            run[output.name] = run.get(output.name, "") + output.text
        else:
            flush()
            merged.append(output)
    flush()
    return merged


def shown(nb: NotebookNode) -> list[str]:
    """The ids of the widgets that cells show, in order."""
    data = [output.get("data", {}) for cell in code_cells(nb) for output in cell.outputs]
    return [part[WIDGET_VIEW]["model_id"] for part in data if WIDGET_VIEW in part]


def shown_models(state: dict, roots: list[str]) -> list[str]:
    """The ids in `state` that the page needs: `roots`, what they hold, and the links between these.

    Not progress bars that are gone, for instance. In the order of `state`."""
    refers = {
        key: set(re.findall(r'"IPY_MODEL_([^"]+)"', json.dumps(model)))
        for key, model in state.items()
    }
    kept, todo = set(), set(roots) & set(state)
    while todo:
        kept |= todo
        links = {
            key
            for key, model in state.items()
            if model["model_name"].endswith("LinkModel") and refers[key] & kept
        }
        todo = (set().union(*(refers[key] for key in todo)) | links) & set(state) - kept
    return [key for key in state if key in kept]


def drop_nulls(model: dict) -> dict:
    """A widget's model without nulls, and without what layouts and styles say by their class."""
    plain = model["model_name"].endswith(("LayoutModel", "StyleModel"))
    state = {
        key: value
        for key, value in model["state"].items()
        if value is not None and not (plain and key.startswith(("_model_", "_view_")))
    }
    return {**model, "state": state}


def number_widgets(nb: NotebookNode) -> dict:
    """`nb` as plain data, its widgets called w0001, w0002…"""
    state = nb.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    names = {old: f"w{i:04d}" for i, old in enumerate(dict.fromkeys([*shown(nb), *state]), 1)}
    text = json.dumps(nb)
    if names:  # in one sweep: a new name may be another widget's old one
        old = re.compile(r'(?<=")(IPY_MODEL_)?(' + "|".join(map(re.escape, names)) + r')(?=")')
        text = old.sub(lambda m: (m[1] or "") + names[m[2]], text)
    return json.loads(text)


def dumps(nb: NotebookNode) -> bytes:
    """The bytes of a notebook file: sorted keys, one space of indent, a newline at the end."""
    return nbformat.writes(nb).rstrip("\n").encode() + b"\n"


def write(nb: NotebookNode, path: Path) -> None:
    """Writes the whole notebook or, when interrupted, nothing of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(dumps(nb))
        os.chmod(name, path.stat().st_mode if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# -- executing ------------------------------------------------------------------------------------


async def execute(nb: NotebookNode, path: Path, timeout: int = TIMEOUT, progress=None):
    """Executes `nb` in place, in a fresh kernel that sees no GPU, in the folder of `path`.

    Raises `NotebookError` naming notebook and cell when a cell fails or takes over `timeout` s.
    """
    at = {"number": 0}

    def started(cell, cell_index):
        at.update(number=cell_index + 1, cell=cell)

    def interruptible(**_):  # nbclient takes Ctrl-C for itself and goes on with the next notebook
        with suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def done(**_):
        if progress is not None:
            progress.update()

    for cell in code_cells(nb):
        cell.outputs, cell.execution_count = [], None
    nb.metadata.pop("widgets", None)
    client = NotebookClient(
        nb,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # no advice about transports
        on_notebook_start=interruptible,
        on_cell_start=started,
        on_cell_executed=done,
    )
    try:
        await client.async_execute(env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    except CellTimeoutError:
        raise NotebookError(where(path, at, f"took over {timeout} s and was stopped")) from None
    except DeadKernelError:
        raise NotebookError(
            where(path, at, "ended the kernel (killed, or out of memory)")
        ) from None
    except CellExecutionError as error:
        trace = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback or str(error))
        trace = trace.split("\n------------------\n", 2)[-1].strip("\n")  # after the cell's source
        raise NotebookError(where(path, at, "failed") + "\n" + indent(trace, "  ")) from None


def where(path: Path, at: dict, what: str) -> str:
    source = indent(at["cell"].source, "  | ") if "cell" in at else ""
    return f"{show(path)}, cell {at['number']}, {what}:\n{source}"


async def execute_all(paths: list[Path], timeout: int) -> dict[Path, NotebookNode | NotebookError]:
    """Every notebook executed, `AT_ONCE` at a time, in canonical form, or the error it ended in."""
    todo = {path: with_colab_cell(read(path)) for path in paths}
    total = sum(len(code_cells(nb)) for nb in todo.values())
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> NotebookNode | NotebookError:
        async with slots:
            try:
                await execute(todo[path], path, timeout, bar)
                return canonical(todo[path])
            except NotebookError as error:
                return error

    with tqdm(total=total, unit="cell", desc="executing", disable=not sys.stderr.isatty()) as bar:
        return dict(zip(paths, await asyncio.gather(*map(one, paths)), strict=True))


def with_colab_cell(nb: NotebookNode, root: Path = ROOT) -> NotebookNode:
    """`nb` with the Colab cell in front, in its present text, and no badge before it."""
    rest = [cell for cell in nb.cells if cell.get("id") not in ("colab", BADGE)]
    counts = [cell.execution_count for cell in nb.cells if cell.get("id") == "colab"]
    cell = colab_cell(root)
    cell.execution_count = next(iter(counts), None)
    nb.cells = [cell, *rest]
    return nb


def run(
    paths: Iterable[Path | str] | None = None,
    check: bool = False,
    fresh: bool = False,
    timeout: int = TIMEOUT,
) -> int:
    """Executes notebooks (all of the book's by default) and writes them in canonical form.

    A path may be the stem of a chapter, "00_setup". Raises NotebookError where there is no file.
    A cell tagged nbval-ignore-output keeps the outputs it has (another machine, another minute
    gives others), unless its source or the kinds of its outputs changed, or `fresh` is asked for.
    What the book's notebooks compiled goes into the archive (beforehand.py).
    With `check`, writes nothing and compares: the bytes in the file must be those that would be
    written. Prints what is wrong, cell by cell, and a summary line. Returns the exit status: 0, or
    1 when anything is wrong.
    """
    wrong, good = [] if paths else readme_chart(check), []
    whole, paths = not paths, [find(path) for path in paths] if paths else notebooks()
    with beforehand.recorded() as compiled:
        executed = finish(execute_all(paths, timeout))
    for path, result in executed.items():
        if isinstance(result, NotebookError):
            wrong.append(str(result))
            continue
        if not fresh:
            keep_tagged(result, read(path))
        found = [f"{show(path)}: {problem}" for problem in problems(result)]
        if check:
            found += [f"{show(path)}: {difference}" for difference in differences(path, result)]
        elif dumps(result) != path.read_bytes():
            write(result, path)
            print(f"wrote {show(path)}")
        wrong += found
        good.append(result)
    if set(paths) <= set(notebooks()):
        wrong += beforehand.keep_up(compiled, whole and len(good) == len(paths), check)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    if check and wrong:
        print("To write the notebooks anew: python -m sgemm_lab run", file=sys.stderr)
    print(summary(good))
    return int(bool(wrong))


def finish(work: Coroutine):
    """What `work` returns, also where this thread runs an event loop already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def find(path: Path | str) -> Path:
    """The file at `path`, or the chapter with that stem. Raises NotebookError for neither."""
    chapters = {chapter.stem: chapter for chapter in notebooks()}
    found = Path(path) if Path(path).is_file() else chapters.get(str(path))
    if found is None:
        raise NotebookError(
            f"there is no notebook {path}. Give a path, or a chapter: {', '.join(chapters)}."
        )
    return found.resolve()


def readme_chart(check: bool) -> list[str]:
    """Draws the README's chart anew, or with `check` says that the file is not what it would be."""
    from sgemm_lab.show import charts

    png = charts.ladder().png
    if README_CHART.exists() and README_CHART.read_bytes() == png:
        return []
    if check:
        return [f"{show(README_CHART)}: image differs from what the records give"]
    README_CHART.write_bytes(png)
    print(f"wrote {show(README_CHART)}")
    return []


def keep_tagged(now: NotebookNode, old: NotebookNode) -> None:
    """Gives the tagged cells of `now` the outputs they have in `old`, where those still fit."""
    before = {cell.id: cell for cell in code_cells(old)}
    for cell in code_cells(now):
        was = before.get(cell.id)
        if was and IGNORE in tags(cell) and (was.source, kinds(was)) == (cell.source, kinds(cell)):
            cell.outputs = was.outputs


def summary(nbs: list[NotebookNode]) -> str:
    """How much nbval compares: "3 notebooks, 30 code cells, 28 compared, 2 tagged"."""
    cells = [cell for nb in nbs for cell in code_cells(nb)]
    tagged = sum(IGNORE in tags(cell) for cell in cells)
    return (
        f"{len(nbs)} notebooks, {len(cells)} code cells, "
        f"{len(cells) - tagged} compared, {tagged} tagged"
    )


# -- comparing ------------------------------------------------------------------------------------


def differences(path: Path, now: NotebookNode) -> list[str]:
    """What differs between the file and `now`, a canonical execution of it, cell by cell."""
    committed = path.read_bytes()
    old, now = read(path), nbformat.from_dict(now)
    before = {cell.id: cell for cell in old.cells}
    for cell in code_cells(
        now
    ):  # the contents of a tagged cell's outputs are free, not their kinds
        twin = before.get(cell.id)
        if IGNORE in tags(cell) and twin and kinds(twin) == kinds(cell):
            cell.outputs = twin.outputs
    if dumps(now) == committed:
        return []
    found = list(cell_differences(old, now))
    if old.metadata.get("widgets") != now.metadata.get("widgets"):
        found.append("widget state differs" + text_diff(*map(widget_text, (old, now))))
    return found or ["not in canonical form (metadata, order of keys, or white space)"]


def cell_differences(old: NotebookNode, now: NotebookNode) -> Iterator[str]:
    before = {cell.id: cell for cell in old.cells}
    if list(before) != [cell.id for cell in now.cells]:
        yield "the cells are not the same (the first must be the Colab cell)"
    for number, cell in enumerate(now.cells, 1):
        was = before.get(cell.id, cell)
        name = f"cell {number} ({cell.id})"
        if was.source != cell.source:
            yield f"{name}: source differs" + text_diff(was.source, cell.source)
        if cell.cell_type != "code":
            continue
        if was.execution_count != cell.execution_count:
            yield f"{name}: execution count is {was.execution_count}, not {cell.execution_count}"
        if kinds(was) != kinds(cell):
            yield f"{name}: outputs differ: {listed(was)} in the file, {listed(cell)} when executed"
            continue
        for a, b in zip(was.outputs, cell.outputs, strict=True):
            for kind, x, y in zip(kinds_of(a), contents(a), contents(b), strict=True):
                if x != y and kind.startswith("image/") and kind != "image/svg+xml":
                    yield f"{name}: image differs ({kind})"
                elif x != y:
                    yield f"{name}: {kind} differs" + text_diff(x, y)


def kinds_of(output: NotebookNode) -> list[str]:
    """The parts of an output by name: 'stdout', or its MIME types, or 'error'."""
    if output.output_type == "stream":
        return [output.name]
    return sorted(output.data) if "data" in output else [output.output_type]


def contents(output: NotebookNode) -> list[str]:
    """The parts of an output as text, in the order of `kinds_of`."""
    if output.output_type == "stream":
        return [output.text]
    if "data" not in output:
        return [json.dumps(output, sort_keys=True)]
    parts = (output.data[kind] for kind in sorted(output.data))
    return [p if isinstance(p, str) else json.dumps(p, sort_keys=True) for p in parts]


def kinds(cell: NotebookNode) -> list[tuple[str, ...]]:
    return [tuple(kinds_of(output)) for output in cell.outputs]


def listed(cell: NotebookNode) -> str:
    return ", ".join("+".join(kind) for kind in kinds(cell)) or "none"


def widget_text(nb: NotebookNode) -> str:
    return json.dumps(nb.metadata.get("widgets", {}), indent=1, sort_keys=True)


def text_diff(a: str, b: str, lines: int = 12, width: int = 160) -> str:
    """The first differing lines, - from the file and + as executed, indented below a message."""
    diff = [
        line[:width]
        for line in difflib.unified_diff(a.splitlines(), b.splitlines(), n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    more = [f"… and {len(diff) - lines} lines more"] if len(diff) > lines else []
    return "\n" + indent("\n".join(diff[:lines] + more), "    ")


# -- what a notebook must be, found without executing it ------------------------------------------

MACHINE = {
    "a path of this machine": re.compile(
        r"(?<![\w.])/(?:home|Users|root|tmp|work|var/folders|opt|usr/lib)/\w"
        r"|[A-Z]:\\\\?(?:Users|Windows|Temp)"
    ),
    "a file of this installation": re.compile(r"site-packages|ipykernel_\d"),
    "an address in memory": re.compile(r"\bat 0x[0-9a-f]{6,}"),
}


def machine(text: str) -> list[str]:
    """What in `text` belongs to one machine, in words."""
    found = ((what, pattern.search(text)) for what, pattern in MACHINE.items())
    return [f"{what}: {match[0]!r}" for what, match in found if match]


def problems(nb: NotebookNode) -> list[str]:
    """What is wrong with a notebook as it stands, without executing it: one sentence each."""
    found: list[str] = []
    first, wanted = (
        [(cell.source, tags(cell), cell.get("outputs")) for cell in cells]
        for cells in (nb.cells[:1], [colab_cell()])
    )
    if first != wanted:
        found.append(
            "does not begin with the Colab cell, as the address in _config.yml makes it: "
            "python -m sgemm_lab notebooks --fix"
        )
    found += [
        f"two cells have the id {i}" for i, n in Counter(c.id for c in nb.cells).items() if n > 1
    ]
    state = nb.metadata.get("widgets", {}).get(WIDGET_STATE)
    if state is not None and "state" not in state:
        found.append(
            "its widget state has no key `state` (Colab saves it so): the page shows no widget: "
            "python -m sgemm_lab notebooks --fix"
        )
    widgets = (state or {}).get("state", {})
    found += [f"its widget state holds {what}" for what in machine(json.dumps(widgets))]
    cells = code_cells(nb)
    if idle := [cell.id for cell in cells if cell.execution_count is None]:
        found.append(
            f"{len(idle)} of its {len(cells)} code cells were not executed, or their outputs were "
            f"stripped (the first is {idle[0]}): python -m sgemm_lab run"
        )
    elif cells and not any(cell.outputs for cell in cells):
        found.append("not one of its cells shows anything: python -m sgemm_lab run")
    for count, cell in enumerate(cells, 1):
        name = f"cell {nb.cells.index(cell) + 1} ({cell.id})"
        after = cells[count] if count < len(cells) else None
        found += [f"{name}: {p}" for p in cell_problems(cell, count, after, widgets)]
    for number, cell in enumerate(nb.cells, 1):
        unknown = sorted(tags(cell) - TAGS)
        if unknown:
            found.append(f"cell {number} ({cell.id}): unknown tags {', '.join(unknown)}")
    return found


def cell_problems(
    cell: NotebookNode, count: int, after: NotebookNode | None, widgets: dict
) -> Iterator[str]:
    lines = len(cell.source.splitlines())
    if lines == 0:
        yield "is empty"
    if lines > MAX_LINES:
        yield f"has {lines} lines; {MAX_LINES} are enough, the rest belongs into sgemm_lab"
    if cell.execution_count not in (None, count):
        yield f"its execution count is {cell.execution_count}, not {count}: python -m sgemm_lab run"
    if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source):
        yield "steers nbval by a comment; use a tag"
    if IGNORE in tags(cell) and (after is None or IGNORE in tags(after)):
        yield f"is tagged {IGNORE}, so a compared cell must follow it"
    failed = any(output.output_type == "error" for output in cell.outputs)
    if failed and "raises-exception" not in tags(cell):
        yield "ends in an error without the tag raises-exception"
    for output in cell.outputs:
        view = output.get("data", {}).get(WIDGET_VIEW)
        if view and view["model_id"] not in widgets:
            yield "shows a widget whose state is not in the notebook"
        for kind, text in zip(kinds_of(output), contents(output), strict=True):
            if kind.startswith("image/") and kind != "image/svg+xml":
                continue
            yield from (f"its output ({kind}) holds {what}" for what in machine(text))


# -- small things ---------------------------------------------------------------------------------


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def show(path: Path) -> str:
    """`path` as it is called in messages: relative to the repository where it lies in it."""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def main(argv: list[str]) -> int:
    """The command `python -m sgemm_lab run`."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab run",
        description="Executes notebooks without a GPU and writes them, the same bytes every time.",
    )
    parser.add_argument(
        "paths", nargs="*", help="notebooks, or chapters such as 00_setup; all of them by default"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; compare with the files"
    )
    parser.add_argument(
        "--fresh", action="store_true", help=f"new outputs for cells tagged {IGNORE}, too"
    )
    parser.add_argument("--timeout", type=int, default=TIMEOUT, help="seconds a cell (%(default)s)")
    given = parser.parse_args(argv)
    try:
        return run(given.paths, given.check, given.fresh, given.timeout)
    except NotebookError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; every notebook is whole", file=sys.stderr)
    return 1
