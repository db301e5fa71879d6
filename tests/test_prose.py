"""The prose: its figures come from the records, and nobody typed them."""

import ast
import builtins
import json
import random
import re
from functools import cache

import pytest

from sgemm_lab import book, devices, ladder, listed, recorded, span, speedups, tell
from sgemm_lab.measure import records
from sgemm_lab.paths import BOOK, MEASUREMENTS, ROOT
from sgemm_lab.run import agreement
from sgemm_lab.show import speeds

# -- what a cell tells ----------------------------------------------------------------------------


def test_told_text_is_markdown_and_the_same_words_without_its_marks():
    told = tell("**{gain:.2f}** `x` *y* 2 * 3 * 4, [z](z.ipynb)", gain=1.234)
    assert told._repr_markdown_() == "**1.23** `x` *y* 2 * 3 * 4, [z](z.ipynb)"
    assert repr(told) == "1.23 x y 2 * 3 * 4, z"


def test_told_text_is_not_indented_as_its_cell_is():
    assert (
        tell("""One,
        two.

        Three.""").markdown
        == "One,\ntwo.\n\nThree."
    )


@pytest.mark.parametrize("text, values, said", [
    ("{a} {b[0]:.1f}", {"a": 1}, "b has no value"),
    ("{a}", {"a": 1, "c": 2, "b": 3}, "b, c is not told"),
    ("{}", {}, "{} has no value"),
])  # fmt: skip
def test_a_field_without_a_value_and_a_value_without_a_field_are_named(text, values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        tell(text, **values)


def test_lists_and_ranges_are_written_as_one_says_them():
    assert [listed(range(n)) for n in range(4)] == ["none", "0", "0 and 1", "0, 1 and 2"]
    assert span([1.53, 1.41, 1.47]) == "1.4 to 1.5"
    assert span([1.41, 1.44]) == "1.4"


# -- what is recorded -----------------------------------------------------------------------------


def test_recorded_takes_the_run_of_exactly_these_macros():
    assert recorded(5, 4096) == recorded(ladder[5], 4096) == recorded(ladder[5](), 4096)
    assert dict(recorded(5, 4096).macros) == dict(ladder[5]().macros)
    other = ladder[5](TILE=32, BK=32, TM=4)
    assert dict(recorded(other, 4096).macros) == dict(other.macros)
    assert recorded(0, 4096).step == 0


def test_recorded_takes_the_fastest_kernel_of_another_author_at_a_step():
    rates = [r.gflops for r in records.runs("t4", 2, label="R1", N=2048)]
    assert len(rates) > 1 and recorded(2, 2048, "t4", "R1").gflops == max(rates)


def test_what_is_not_recorded_is_named_with_its_place():
    with pytest.raises(LookupError, match=r"nothing .* 2 at N = 77 on h200 \(measured\)"):
        recorded(2, 77)
    with pytest.raises(LookupError, match=r"1 and 2 have no N in common on t4 \(R3\)"):
        speedups(1, 2, "t4", "R3")


def test_a_speedup_is_the_quotient_of_two_times_at_one_clock_else_of_two_rates():
    new, old = recorded(9, 4096), recorded(8, 4096)
    assert speedups(9, 8)[4096] == pytest.approx(old.ms / new.ms)
    assert list(speedups(9, 8, sizes=range(4095, 4097))) == [4095, 4096]
    tiled, naive = (recorded(step, 2048, "t4", "R2") for step in (2, 1))
    assert speedups(2, 1, "t4", "R2") == {2048: tiled.gflops / naive.gflops}


# -- the pages follow the records -----------------------------------------------------------------


read = cache(book.read)


def told(nb) -> list:
    return [cell for cell in book.code_cells(nb) if "tell(" in cell.source]


def run(nb, cell, names: dict):
    """What `cell` shows: executed after those cells before it that give it a name it uses."""
    cells = book.code_cells(nb)
    wanted, chosen = loaded(cell), [cell]
    for earlier in reversed(cells[: cells.index(cell)]):
        if bound(earlier) & wanted:
            wanted |= loaded(earlier)
            chosen.append(earlier)
    for each in reversed(chosen):
        tree = ast.parse(each.source)
        last = tree.body.pop() if each is cell else None
        exec(compile(tree, each.id, "exec"), names)
    return eval(compile(ast.Expression(last.value), cell.id, "eval"), names)


def loaded(cell) -> set[str]:
    used = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
    return used - set(dir(builtins))


def bound(cell) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(cell.source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return found


def plain(cell) -> str:
    return cell.outputs[0].data["text/plain"]


TOLD = [
    pytest.param(path, cell.id, id=cell.id)
    for path in book.notebooks()
    for cell in told(read(path))
]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A copy of the files of runs in which every time is another one."""
    directory = tmp_path_factory.mktemp("measurements")
    for path in MEASUREMENTS.glob("*.json"):
        record = json.loads(path.read_text("utf-8"))
        if record.get("kind") not in ("measured", "reported"):
            continue
        rng = random.Random(path.name)
        for run in record["runs"]:
            slower = rng.uniform(0.2, 5)
            for name in {"ms", "ratio"} & set(run):
                by = slower if name == "ms" else 1 / slower
                run[name] = {each: by * value for each, value in run[name].items()}
            if "gflops" in run:
                run["gflops"] /= slower
        records.write(directory / path.name, record)
    return directory


@pytest.fixture
def disturbed(monkeypatch, elsewhere):
    original = records._file
    monkeypatch.setattr(records, "_file", lambda path, t: original(elsewhere / path.name, t))


def test_there_are_cells_that_tell():
    assert len(TOLD) > 20


@pytest.mark.parametrize("path, name", TOLD)
def test_what_is_told_is_what_the_records_say(path, name):
    nb = read(path)
    (cell,) = (each for each in nb.cells if each.id == name)
    assert repr(run(nb, cell, {})) == plain(cell)
    assert "hide-input" in book.tags(cell)


@pytest.mark.parametrize("path, name", TOLD)
def test_another_number_in_the_files_is_another_sentence_on_the_page(path, name, disturbed):
    nb = read(path)
    (cell,) = (each for each in nb.cells if each.id == name)
    if not loaded(cell) & {"recorded", "speedups"}:
        pytest.skip("tells of something else than recorded runs")
    assert repr(run(nb, cell, {})) != plain(cell)


def test_what_is_told_of_compute_sanitizer_follows_its_file(monkeypatch, tmp_path):
    nb = read(BOOK / "counting.ipynb")
    (cell,) = told(nb)
    text = (MEASUREMENTS / "sanitizers.json").read_text("utf-8")
    (tmp_path / "sanitizers.json").write_text(re.sub(r'"\d\d_\w+: ', '"07_square: ', text), "utf-8")
    monkeypatch.setattr(agreement, "SANITIZERS", tmp_path / "sanitizers.json")
    assert "in them: 7;" in repr(run(nb, cell, {})) != plain(cell)


def test_the_loop_that_a_caption_tells_of_is_as_fast_as_its_file_says(tmp_path):
    record = json.loads((MEASUREMENTS / "rates_h200.json").read_text("utf-8"))
    record["rates"].update(ffma_lanes=100, clock_mhz=1000)  # on each of 132 SMs
    (tmp_path / "rates_h200.json").write_text(json.dumps(record), "utf-8")
    look = {"directory": tmp_path}
    assert "multiply-adds reaches 26.4 TFLOPS" in speeds._loop(devices["h200"], look)
    assert speeds._loop(devices["t4"], look) == ""


def test_the_readmes_chart_is_drawn_from_the_records():
    assert book.readme_chart(check=True) == []


def test_another_number_in_the_files_is_another_chart_in_the_readme(disturbed):
    assert book.readme_chart(check=True) != []


# -- nobody typed a figure ------------------------------------------------------------------------

COUNT = r"(?:\d[\d.,]*|one|two|three|four|five|six|seven|eight|nine|ten|twenty)"
FIGURE = re.compile(
    rf"{COUNT}\s*(?:GFLOPS|TFLOPS|GFLOP/s|GB/s|ms\b|%)"
    rf"|{COUNT}\s+(?:times (?:as (?:fast|slow|long)|faster|slower)|points?\b)"
    r"|\d\s+times the speed"
    rf"|{COUNT}-?fold\b|×\s?\d+\.\d"
    r"|(?:half|third|fourth|quarter|fifth|sixth|seventh|tenth)s? of (?:cuBLAS|its bound)",
    re.IGNORECASE,
)
SOURCE = re.compile(r"\bR[123]\b|ladders? [ab]\b")
OURS = re.compile(r"\b(?:H200|we|ours?)\b", re.IGNORECASE)

# Limits that somebody set, and no results
SET = ("agree within 3 %", "less than 0.1 ms", "95 % interval", "at 100 % of", "only beyond 5 %")


def figures(text: str) -> list[str]:
    """The sentences of a Markdown text that state a speed and not whose it is: no source is named
    in their paragraph, or, where they tell of us, in themselves."""
    text = re.sub("|".join(map(re.escape, SET)), " ", text)
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$|\{[^}]*\}", " ", text, flags=re.DOTALL)
    found = []
    for paragraph in re.split(r"\n\s*\n", prose):
        for each in re.split(r"(?<=[.?!:])\s+", paragraph):
            theirs = SOURCE.search(each if OURS.search(each) else paragraph)
            if FIGURE.search(each) and not theirs:
                found.append(each)
    return found


def pages() -> dict[str, list[str]]:
    """Page → its texts: Markdown, and what cells tell, where the figures are fields."""
    found = {name: [(ROOT / name).read_text("utf-8")] for name in ("README.md", "book/intro.md")}
    for path in book.notebooks():
        nb = read(path)
        found[path.stem] = [c.source for c in nb.cells if c.cell_type == "markdown"]
        for cell in told(nb):
            for node in ast.walk(ast.parse(cell.source)):
                match node:
                    case ast.Call(func=ast.Name(id="tell"), args=[ast.Constant(value=text)]):
                        found[path.stem].append(text)
    return found


@pytest.mark.parametrize("page, texts", pages().items(), ids=pages())
def test_no_page_states_a_speed_that_somebody_typed(page, texts):
    assert [each for text in texts for each in figures(text)] == []


@pytest.mark.parametrize("limit", SET)
def test_a_limit_that_was_set_still_stands_somewhere(limit):
    assert any(limit in text for texts in pages().values() for text in texts)


@pytest.mark.parametrize("typed", [
    "On the H200 it reaches 42.1 TFLOPS.",
    "It is 23 683 GFLOPS there.",
    "The step brings it to 82 % of cuBLAS.",
    "Our kernel is 1.4 to 1.5 times as fast as the naive one.",
    "It is five times faster, or three or four times slower.",
    "The warp tile gains two points.",
    "The speeds differ tenfold.",
    "That is worth ×1.31 on this chip.",
    "It takes 0.8 ms.",
    "It reaches four fifths of its bound, and stays within a tenth of cuBLAS.",
])  # fmt: skip
def test_a_typed_figure_is_found(typed):
    assert figures(f"You need chapter 7. {typed}\n\nThat is R3's step.") == [typed]
    ours = f"{typed[:-1]}, on our GPU."
    assert figures(f"You need chapter 7. {ours} That is R3's step.") == [ours]


@pytest.mark.parametrize("fine", [
    "R1's kernel reached 11.5 % there.",
    "R1 has a table of times. The tiled kernel took 5.4 ms.",
    "A warp is two rows of 16 lanes: four wavefronts for 16 multiply-adds, 0.25 each.",
    "It is several times slower than no tiling at all.",
    "Global sectors fall 20 times, shared loads to two fifths, and half of the lanes wait.",
    "It is {gain:.1f} times as fast, and at {share:.0f} % of cuBLAS.",
    "Two tiles of 4×4, 8.5 wavefronts, a T4 with 64 KiB and 320 SMs.",
    "```\n42 TFLOPS\n```",
])  # fmt: skip
def test_what_is_counted_quoted_or_told_is_no_typed_figure(fine):
    assert figures(fine) == []
