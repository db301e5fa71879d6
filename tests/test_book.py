"""The notebooks: what each must be, and that executing them again gives the same bytes."""

import base64
import copy
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

from sgemm_lab import book, notebooks
from sgemm_lab.paths import ROOT

# -- the committed notebooks ----------------------------------------------------------------------


@pytest.mark.parametrize("path", book.notebooks(), ids=lambda path: path.stem)
def test_a_committed_notebook_is_whole_and_canonical(path):
    found = notebooks.problems(path)
    assert found == [], "\n".join(found)


def test_the_table_of_contents_has_every_page_once():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
    pages = sorted(p for end in ("ipynb", "md") for p in (ROOT / "book").glob(f"*.{end}"))
    there = [f"book/{path.stem}" for path in pages]
    assert sorted(listed) == sorted(there), (
        f"_toc.yml lacks {set(there) - set(listed) or 'nothing'}, names "
        f"{set(listed) - set(there) or 'nothing'} that is not there, and names "
        f"{[page for page in set(listed) if listed.count(page) > 1] or 'nothing'} twice. "
        "Give each page of book/ one line there."
    )


def test_few_cells_are_spared_from_nbval():
    cells = [cell for path in book.notebooks() for cell in book.code_cells(book.read(path))]
    assert sum(book.IGNORE in book.tags(cell) for cell in cells) <= len(cells) / 4


# -- a small notebook, executed -------------------------------------------------------------------

CELLS = {
    "streams": "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')",
    "value": "{'b': 1, 'a': 2}",
    "figure": """\
import matplotlib.pyplot as plt

plt.figure(figsize=(2, 1))
plt.plot([1, 4, 9])
plt.show()""",
    "widgets": """\
import ipywidgets as w
from IPython.display import display

pick = w.Dropdown(options=["8", "16"], description="TILE")
panes = w.Tab([w.HTML("64 threads"), w.HTML("256 threads")])
w.jslink((pick, "index"), (panes, "selected_index"))
gone = w.FloatProgress()  # shown by no cell
box = w.VBox([pick, panes])
view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
display({"application/vnd.jupyter.widget-view+json": view, "text/plain": "8, 16"}, raw=True)""",
    "clock": "import time\nprint(time.time())",
    "after": "1 + 1",
}


def sample(cells=CELLS) -> nbformat.NotebookNode:
    made = [new_markdown_cell("# Sample", id="title")]
    for name, source in cells.items():
        tags = {"tags": [book.IGNORE]} if name == "clock" else {}
        made.append(new_code_cell(source, id=name, metadata=tags))
    return new_notebook(cells=made)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A file as `run` writes it. Tests take a copy."""
    path = tmp_path_factory.mktemp("executed") / "sample.ipynb"
    nbformat.write(sample(), path)
    assert book.run([path]) == 0
    return path


@pytest.fixture(scope="module")
def again(executed):
    """The same notebook, executed once more."""
    return book.finish(book.execute_all([executed], 60))[executed]


@pytest.fixture
def notebook(executed, tmp_path):
    return shutil.copy(executed, tmp_path / "sample.ipynb")


def cell(nb, name):
    return next(cell for cell in nb.cells if cell.id == name)


def changed(path, change):
    """Writes the notebook in `path` with `change(nb)` done to it."""
    nb = book.read(path)
    change(nb)
    path.write_bytes(book.dumps(nb))


def test_two_executions_give_the_same_bytes_figures_and_widgets_included(executed, again):
    nb = book.read(executed)
    book.keep_tagged(again, nb)
    assert book.dumps(again) == executed.read_bytes()
    assert "image/png" in cell(nb, "figure").outputs[0].data
    models = [m.model_name for m in nb.metadata.widgets[book.WIDGET_STATE].state.values()]
    assert {"VBoxModel", "DropdownModel", "TabModel", "HTMLModel", "LinkModel"} <= set(models)
    assert "FloatProgressModel" not in models


def test_the_canonical_form_of_the_canonical_form_is_itself(executed):
    nb = book.read(executed)
    assert book.dumps(book.canonical(book.canonical(nb))) == executed.read_bytes()


def test_canonical_drops_what_two_executions_do_not_share(executed):
    nb = book.read(executed)
    noisy = copy.deepcopy(nb)
    noisy.metadata.language_info["version"] = "3.12.1"
    noisy.metadata["papermill"] = {"duration": 1.5}
    ids = list(noisy.metadata.widgets[book.WIDGET_STATE].state)
    text = json.dumps(noisy)
    for number, name in enumerate(ids):
        text = text.replace(f'"{name}"', f'"{number:032x}"').replace(
            f'"IPY_MODEL_{name}"', f'"IPY_MODEL_{number:032x}"'
        )
    noisy = nbformat.from_dict(json.loads(text))
    for count, code in enumerate(book.code_cells(noisy)):
        code.execution_count = 10 + count
        code.metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    assert book.dumps(noisy) != book.dumps(nb)
    assert book.dumps(book.canonical(noisy)) == book.dumps(nb)


def test_streams_are_joined_whatever_pieces_they_came_in():
    piece = lambda name, text: nbformat.v4.new_output("stream", name=name, text=text)  # noqa: E731
    whole = [piece("stdout", "abc\n"), piece("stderr", "!\n")]
    pieces = [piece("stdout", "a"), piece("stderr", "!\n"), piece("stdout", "bc\n")]
    assert book.merge_streams(pieces) == whole


def one_pixel(nb):
    output = cell(nb, "figure").outputs[0]
    image = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
    red, *rest = image.getpixel((3, 3))
    image.putpixel((3, 3), (red ^ 1, *rest))
    file = io.BytesIO()
    image.save(file, "PNG")
    output.data["image/png"] = base64.b64encode(file.getvalue()).decode() + "\n"


def stripped(nb):
    cell(nb, "value").outputs = []


def stale(nb):
    cell(nb, "value").outputs[0].data["text/plain"] = "{'b': 1, 'a': 3}"


def widget(nb):
    state = nb.metadata.widgets[book.WIDGET_STATE].state
    html = next(m for m in state.values() if m.model_name == "HTMLModel")
    html.state.value = "63 threads"


def source(nb):
    cell(nb, "after").source = "1 + 2"


def reordered(nb):
    nb.cells[2:4] = nb.cells[3:1:-1]


def lost_output(nb):
    cell(nb, "clock").outputs = []


DIFFERENCES = {
    one_pixel: "cell 5 (figure): image differs (image/png)",
    stripped: "cell 4 (value): outputs differ: none in the file, text/plain when executed",
    lost_output: "cell 7 (clock): outputs differ: none in the file, stdout when executed",
    stale: "cell 4 (value): text/plain differs\n    -{'b': 1, 'a': 3}\n    +{'b': 1, 'a': 2}",
    widget: "widget state differs",
    source: "cell 8 (after): source differs\n    -1 + 2\n    +1 + 1",
    reordered: "the cells are not the same",
}


@pytest.mark.parametrize("change", DIFFERENCES, ids=lambda change: change.__name__)
def test_a_difference_is_found_and_named(notebook, again, change):
    changed(notebook, change)
    book.keep_tagged(again, book.read(notebook))
    assert DIFFERENCES[change] in "\n".join(book.differences(notebook, again))


def test_check_fails_on_one_changed_pixel_and_writes_nothing(notebook, capsys):
    changed(notebook, one_pixel)
    before = notebook.read_bytes()
    assert book.main(["--check", str(notebook)]) == 1
    assert "cell 5 (figure): image differs" in capsys.readouterr().err
    assert notebook.read_bytes() == before


def test_check_passes_on_what_run_wrote_and_lets_tagged_cells_differ(notebook, capsys):
    changed(notebook, lambda nb: cell(nb, "clock").outputs[0].update(text="12.5\n"))
    assert book.main(["--check", str(notebook)]) == 0
    assert "1 notebooks, 7 code cells, 6 compared, 1 tagged" in capsys.readouterr().out


def test_a_failing_cell_is_named_with_its_source_and_the_file_stays(tmp_path, capsys):
    path = tmp_path / "broken.ipynb"
    nbformat.write(sample({"fine": "x = 1", "bad": "x / 0"}), path)
    before = path.read_bytes()
    assert book.run([path]) == 1
    said = capsys.readouterr().err
    assert "broken.ipynb, cell 4, failed" in said
    assert "| x / 0" in said and "ZeroDivisionError" in said
    assert path.read_bytes() == before


def test_a_cell_that_takes_too_long_is_named(tmp_path, capsys):
    path = tmp_path / "slow.ipynb"
    nbformat.write(sample({"loop": "while True:\n    pass"}), path)
    assert book.run([path], timeout=2) == 1
    assert "slow.ipynb, cell 3, took over 2 s" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_stops_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "slow.ipynb"
    started = tmp_path / "started"
    wait = f"open({str(started)!r}, 'w').close()\nimport time\ntime.sleep(60)"
    nbformat.write(sample({"wait": wait}), path)
    before = path.read_bytes()
    command = [sys.executable, "-m", "sgemm_lab", "run", str(path), str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "stopped" in process.communicate(timeout=20)[1]
    assert process.returncode == 1
    assert path.read_bytes() == before
    assert os.listdir(tmp_path).count("slow.ipynb") == 1
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys):
    path = tmp_path / "text.ipynb"
    path.write_text("hello")
    assert book.main([str(path)]) == 1
    assert "text.ipynb is not a notebook" in capsys.readouterr().err


def test_a_chapter_is_found_by_its_stem_and_a_missing_file_is_named(capsys):
    assert book.find("00_setup") == ROOT / "book" / "00_setup.ipynb"
    assert book.main(["00_stup"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("there is no notebook 00_stup. Give a path, or a chapter: 00_setup, ")


def test_notebooks_are_executed_where_an_event_loop_runs_already(tmp_path):
    path = tmp_path / "sample.ipynb"
    nbformat.write(sample({"value": "1 + 1"}), path)

    async def inside() -> int:
        return book.run([path])

    assert book.finish(inside()) == 0


def test_notebooks_are_executed_without_a_gpu_in_their_own_folder(tmp_path):
    path = tmp_path / "where.ipynb"
    look = "import os\n(os.environ['CUDA_VISIBLE_DEVICES'], os.path.exists('where.ipynb'))"
    nbformat.write(sample({"look": look}), path)
    assert book.run([path]) == 0
    assert cell(book.read(path), "look").outputs[0].data["text/plain"] == "('', True)"


# -- the form that is committed, without executing ------------------------------------------------


def from_colab(nb, to_github=False) -> str:
    """The notebook as Colab saves it, run there from the first cell to the last, as JSON."""
    raw = json.loads(nbformat.writes(nb))
    raw["nbformat_minor"] = 0
    raw["metadata"]["colab"] = {"provenance": [], "gpuType": "T4"}
    raw["metadata"]["accelerator"] = "GPU"
    if widgets := raw["metadata"].get("widgets"):
        widgets[book.WIDGET_STATE] = widgets[book.WIDGET_STATE]["state"]
    ran = {"status": "ok", "elapsed": 7, "user": {"displayName": "Ada", "userId": "0123"}}
    for each in raw["cells"]:
        each["metadata"] |= {"id": each.pop("id"), "colab": {"base_uri": "https://localhost:8080/"}}
        each["metadata"] |= {"executionInfo": ran} if each["cell_type"] == "code" else {}
        for data in (output["data"] for output in each.get("outputs", []) if "data" in output):
            data["application/vnd.google.colaboratory.intrinsic+json"] = {"type": "string"}
    text = {"output_type": "stream", "name": "stdout", "text": ["Kernels run on Tesla T4"]}
    raw["cells"][0]["outputs"] = [text]
    if to_github:
        metadata = {"id": "view-in-github", "colab_type": "text"}
        badge = {"cell_type": "markdown", "metadata": metadata, "source": ["<a><img></a>"]}
        raw["cells"].insert(0, badge)
    return json.dumps(raw)


@pytest.mark.parametrize("to_github", [False, True], ids=["saved", "saved to GitHub"])
def test_a_notebook_saved_by_colab_is_refused_and_mended(notebook, to_github, capsys):
    before = notebook.read_bytes()
    notebook.write_text(from_colab(book.read(notebook), to_github))
    assert notebooks.main([str(notebook)]) == 1
    told = capsys.readouterr().err
    assert "has no key `state` (Colab saves it so)" in told
    assert "does not begin with the Colab cell" in told
    assert notebooks.main(["--fix", str(notebook)]) == 0
    assert capsys.readouterr().out == "fixed sample.ipynb\n"
    assert notebook.read_bytes() == before


@pytest.mark.parametrize("path", book.notebooks(), ids=lambda path: path.stem)
def test_every_chapter_saved_by_colab_is_refused_and_mended(path, tmp_path, capsys):
    saved = tmp_path / path.name
    saved.write_text(from_colab(book.read(path), to_github=True))
    assert notebooks.main([str(saved)]) == 1
    assert "python -m sgemm_lab notebooks --fix" in capsys.readouterr().err
    assert notebooks.main(["--fix", str(saved)]) == 0
    assert saved.read_bytes() == path.read_bytes()


def colabs_output(nb):
    nb.cells[0].outputs = [nbformat.v4.new_output("stream", text="Kernels run on Tesla T4")]


def colabs_type(nb):
    cell(nb, "value").outputs[0].data["application/vnd.google.colaboratory.intrinsic+json"] = {}


def badged(nb):
    nb.cells.insert(0, new_markdown_cell("<a><img></a>", id="view-in-github"))


def renumbered(nb):
    for code in book.code_cells(nb):
        code.execution_count += 7


def timed(nb):
    nb.cells[2].metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}


def without_colab_cell(nb):
    nb.cells.pop(0)


@pytest.mark.parametrize(
    "change", [renumbered, timed, without_colab_cell, colabs_output, colabs_type, badged]
)
def test_what_an_editor_left_is_found_and_fix_removes_it(notebook, change, capsys):
    before = notebook.read_bytes()
    changed(notebook, change)
    assert notebooks.main([str(notebook)]) == 1
    assert "python -m sgemm_lab" in capsys.readouterr().err
    assert notebooks.main(["--fix", str(notebook)]) == 0
    assert notebook.read_bytes() == before


def nbstripout(nb):
    for code in book.code_cells(nb):
        code.update(outputs=[], execution_count=None)


@pytest.mark.parametrize("change, said", [
    (nbstripout, "7 of its 7 code cells were not executed"),
    (reordered, "its execution count is 3, not 2: python -m sgemm_lab run"),
])  # fmt: skip
def test_what_must_be_executed_is_told_and_the_file_left_alone(notebook, change, said, capsys):
    changed(notebook, change)
    before = notebook.read_bytes()
    assert notebooks.main(["--fix", str(notebook)]) == 1
    assert said in capsys.readouterr().err
    assert notebook.read_bytes() == before


# -- what is found without executing --------------------------------------------------------------


def tagged(nb, name, *tags):
    cell(nb, name).metadata["tags"] = list(tags)


def output(nb, name, text):
    cell(nb, name).outputs = [nbformat.v4.new_output("stream", text=text)]


def path(*parts):
    return "/".join(("", *parts, "x.py"))


PROBLEMS = {
    "no Colab cell": (lambda nb: nb.cells.pop(0), "does not begin with the Colab cell"),
    "not executed": (
        lambda nb: cell(nb, "value").update(execution_count=None),
        "1 of its 7 code cells were not executed, or their outputs were stripped (the first is "
        "value): python -m sgemm_lab run",
    ),
    "stripped": (
        lambda nb: [code.update(outputs=[]) for code in book.code_cells(nb)],
        "not one of its cells shows anything: python -m sgemm_lab run",
    ),
    "reordered": (reordered, "execution count is 3, not 2"),
    "too long": (lambda nb: cell(nb, "value").update(source="x\n" * 21), "has 21 lines"),
    "empty": (lambda nb: cell(nb, "value").update(source=""), "is empty"),
    "unknown tag": (lambda nb: tagged(nb, "value", "nbval-skip"), "unknown tags nbval-skip"),
    "comment": (lambda nb: cell(nb, "value").update(source="# NBVAL_SKIP"), "use a tag"),
    "no cell after": (lambda nb: nb.cells.pop(), "a compared cell must follow"),
    "tagged after tagged": (lambda nb: tagged(nb, "after", book.IGNORE), "compared cell must"),
    "an error": (
        lambda nb: cell(nb, "after").update(outputs=[nbformat.v4.new_output("error")]),
        "ends in an error",
    ),
    "no state": (
        lambda nb: nb.metadata.widgets[book.WIDGET_STATE].pop("state"),
        "has no key `state`",
    ),
    "widget lost": (
        lambda nb: nb.metadata.widgets[book.WIDGET_STATE].state.clear(),
        "shows a widget whose state is not in the notebook",
    ),
    "home": (lambda nb: output(nb, "value", path("home", "ada")), "a path of this machine"),
    "temporary": (lambda nb: output(nb, "value", path("tmp", "ipy_1")), "a path of this machine"),
    "packages": (lambda nb: output(nb, "value", "site-packages/cupy"), "a file of this install"),
    "drive": (lambda nb: output(nb, "value", "C:" + r"\Users\ada"), "a path of this machine"),
    "address": (lambda nb: output(nb, "value", "<f at 0x7f00aa12>"), "an address in memory"),
    "path in a pane": (
        lambda nb: nb.metadata.widgets[book.WIDGET_STATE].state.w0001.state.update(
            x=path("root", "x")
        ),
        "widget state holds a path of this machine",
    ),
    "one id twice": (lambda nb: cell(nb, "value").update(id="after"), "two cells have the id"),
}


@pytest.mark.parametrize("change, said", PROBLEMS.values(), ids=PROBLEMS)
def test_problems_finds(executed, change, said):
    nb = book.read(executed)
    assert book.problems(nb) == []
    change(nb)
    assert any(said in problem for problem in book.problems(nb))
