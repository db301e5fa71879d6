"""Every planted bug of mutants.py is found, at its line; the right kernels have no finding.

And what NVIDIA's compute-sanitizer finds in the same kernels on a GPU, we find.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import benchmark
from mutants import BASES, MUTANTS, SHAPE, WRONG, Base, Mutant

from sgemm_lab.ladder import ladder
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ptx
from sgemm_lab.run.check import EPS, check, default_shapes

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")

PLANTED = [mutant for mutant in MUTANTS if not mutant.proof]
EQUAL = [mutant for mutant in MUTANTS if mutant.proof]
BOOK = [Base(step()) for step in ladder if step.function]
OTHERS = [SHAPE, (35, 79, 41), (3, 3, 3), (40, 24, 32), (64, 1, 33), (1, 70, 16), (33, 32, 31)]

# Where a tool names other lines than we do, and why: (mutant, tool) → reason.
OTHER_LINES: Mapping[tuple[str, str], str] = {
    ("vector: tail without the row's check", tool): "names the line of the other branch: the "
    "assembler made one load of the two"
    for tool in ("memcheck", "initcheck")  # what lies outside A has never been written, either
}


def named(thing) -> str:
    return thing.name if isinstance(thing, Mutant) else thing.variant.key


def shapes_of(base: Base) -> list[tuple[int, int, int]]:
    """Large tiles take long: for them one shape of a kind, K in an odd number of tiles too."""
    m, n, k = base.variant.tile
    if m * n > 32 * 32:
        return [(1, 1, 1), (35, 79, 41), (m - 1, n + 1, 1), (m, n, 3 * k), (m + 4, n + 8, k + 4),
                (m + 1, n - 2, 2 * k + 1), (m + 1, n - 1, 0)]  # fmt: skip
    shapes = dict.fromkeys([*default_shapes(base.variant), *OTHERS])
    return [shape for shape in shapes if 0 not in shape[:2]]


# --- the right kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize("base", [*BOOK, *BASES], ids=named)
def test_a_right_kernel_has_no_finding_and_the_right_result(base):
    for n, shape in enumerate(shapes_of(base)):
        launch = base.launch(shape, beta=0.0 if base.slices > 1 else (0.0, 0.5)[n % 2])
        findings, C = launch.run()
        assert findings == (), shape
        *_, A, B, beta, before = launch.arguments(np.asarray, np.zeros)
        A, B = A.astype(float), B.astype(float)
        bound = np.sqrt(shape[2]) * EPS * (np.abs(A) @ np.abs(B)) + 4 * EPS * (np.abs(C) + 1)
        assert (np.abs(C - (A @ B + float(beta) * before)) <= bound).all(), shape


@pytest.mark.parametrize("base", [base for base in BASES if base.slices == 1], ids=named)
def test_a_right_kernel_passes_the_check_that_wrong_ones_fail(base):
    shapes = default_shapes(base.variant)[:6] if base.shape == SHAPE else shapes_of(base)[2:5]
    found = check(base.variant, shapes)
    assert found.ok, str(found)


def test_the_right_kernels_are_tried_on_enough_shapes():
    assert all(len(shapes_of(base)) >= 7 for base in BASES)
    assert sum(len(shapes_of(base)) >= 18 for base in BASES) >= 10
    assert len({shape for base in (*BOOK, *BASES) for shape in shapes_of(base)}) >= 30


# --- the mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", PLANTED, ids=named)
def test_a_planted_bug_is_found_at_its_line(mutant):
    if mutant.kinds == WRONG:
        found = check(mutant.variant, [mutant.shape or mutant.base.shape], offsets=mutant.offsets)
        assert not found.ok and "should be" in found.failures[0], str(found)
        return
    findings, _ = mutant.launch.run()
    right = [
        f for f in findings if f.kind in mutant.kinds and mutant.lines <= {f.line, f.other_line}
    ]
    assert right, (mutant.kinds, mutant.lines, findings)


@pytest.mark.parametrize("mutant", EQUAL, ids=named)
def test_a_mutant_that_is_proven_equal_has_no_finding_and_the_same_result(mutant):
    assert len(mutant.proof) > 200
    for shape in [*shapes_of(mutant.base)[:12], mutant.shape or mutant.base.shape]:
        same, right = mutant.at_shape(shape).run(), mutant.base.launch(shape).run()
        assert same[0] == () and np.array_equal(same[1], right[1]), shape


def test_the_table_is_long_and_its_names_are_its_own():
    assert len(PLANTED) >= 150 and len(EQUAL) <= 3
    assert max(Counter(re.sub(r"\W+", "", mutant.name) for mutant in MUTANTS).values()) == 1
    assert max(Counter((m.base, m.edits, m.shape) for m in MUTANTS).values()) == 1
    kinds = {kind for mutant in PLANTED for kind in mutant.kinds}
    assert len(kinds) >= 12 and all(mutant.kinds for mutant in PLANTED)
    assert {base.name for base in BASES} == {mutant.base.name for mutant in PLANTED}


def test_a_text_that_does_not_stand_in_the_kernel_once_is_refused():
    for text in ("no such text", "row"):
        with pytest.raises(ValueError, match=rf"'{text}' stands \d+ times"):
            _ = Mutant("", BASES[0], ((text, ""),)).variant


# --- compute-sanitizer: what it says -------------------------------------------------------------


script = benchmark("compute_sanitizer")


def output(*lines: str, summary="ERROR SUMMARY: 0 errors") -> str:
    """As compute-sanitizer prints it."""
    said = [f"========= {line}" for line in lines]
    return "\n".join(
        ["========= COMPUTE-SANITIZER", *said, script.OVER, f"========= {summary}", ""]
    )


OUTSIDE = output(
    "Invalid __global__ read of size 4 bytes",
    "    at naive(int, int, int, float, const float *, const float *, float, float *)+0x2d0 in "
    "kernel.cu:50",
    "    by thread (5,0,0) in block (2,4,0)",
    "    Access to 0x7f3a0a000738 is out of bounds",
    "    and is 1 bytes after the nearest allocation at 0x7f3a0a000000 of size 1,848 bytes",
    "",
    "Invalid __global__ read of size 4 bytes",
    "    at naive(int, int, int, float, const float *, const float *, float, float *)+0x3d0 in "
    "/some/where/kernel.cu:50",
    "    by thread (6,0,0) in block (2,4,0)",
    "    Access to 0x7f3a0a00073c is out of bounds",
    "",
    summary="ERROR SUMMARY: 2 errors",
)
CROOKED = output(
    "Invalid __shared__ write of size 16 bytes",
    "    at vector(int)+0x100 in kernel.cu:39",
    "    by thread (0,1,0) in block (0,0,0)",
    "    Address 0x44 is misaligned",
    "",
    summary="ERROR SUMMARY: 1 error",
)
RACES = output(
    "Error: Race reported between Write access at tiled(int, float *)+0x90 in kernel.cu:65",
    "    and Read access at tiled(int, float *)+0x100 in kernel.cu:72 [508 hazards]",
    "    and Read access at tiled(int, float *)+0x110 in kernel.cu:73 [4 hazards]",
    "",
    "Warning: Race reported between Write access at tiled(int, float *)+0xa0 in kernel.cu:67",
    "    and Write access at tiled(int, float *)+0xa0 in kernel.cu:67 [8 hazards]",
    "",
    summary="RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)",
)
UNWRITTEN = output(
    "Uninitialized __global__ memory read of size 4 bytes",
    "    at naive(int, float *)+0x70 in kernel.cu:53",
    "    by thread (3,1,0) in block (1,0,0)",
    "    Address 0x7f3c7ec000fc",
    "",
    summary="ERROR SUMMARY: 399 errors",
)
BARRIER = output(
    "Barrier error detected. Divergent thread(s) in block.",
    "    at tiled(int, float *)+0x1f0 in kernel.cu:69",
    "    by thread (0,4,0) in block (0,2,0)",
    "",
    summary="ERROR SUMMARY: 1 error",
)


@pytest.mark.parametrize("text, errors, kinds, lines", [
    (OUTSIDE, 2, ["Invalid __global__ read of size 4 bytes: out of bounds"], [50]),
    (CROOKED, 1, ["Invalid __shared__ write of size 16 bytes: misaligned"], [39]),
    (RACES, 1, ["Race: Write, Read", "Race: Write"], [65, 72, 73, 67]),
    (UNWRITTEN, 399, ["Uninitialized __global__ memory read of size 4 bytes"], [53]),
    (BARRIER, 1, ["Barrier error detected. Divergent thread(s) in block"], [69]),
], ids=["outside", "crooked", "races", "unwritten", "barrier"])  # fmt: skip
def test_a_report_is_read(text, errors, kinds, lines):
    assert script.read(text) == {"found": True, "errors": errors, "kinds": kinds, "lines": lines}
    cut = script.read(text.rpartition("=========")[0])
    assert cut["found"] and cut["lines"] == lines, "what a run said before it was stopped counts"


def test_a_clean_run_found_nothing():
    nothing = {"found": False, "errors": 0, "kinds": [], "lines": []}
    assert script.read(output()) == nothing
    races = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    assert script.read(output(summary=races)) == nothing
    hit = 'Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure".'
    after = script.read(output(hit, summary="ERROR SUMMARY: 1 error"))
    assert after == {**nothing, "errors": 1}, "CUDA's own errors are no finding in the kernel"


@pytest.mark.parametrize("text, said", [
    ("", "nothing"),
    (output().replace(script.OVER, "CompileException"), "CompileException"),
    ("Traceback: no module named cupy", "no module named cupy"),
    (output("Error: Device not supported.").rpartition("=========")[0], "Device not supported"),
    (output("Something new in kernel.cu:3", summary="ERROR SUMMARY: 1 error"), "Something new"),
])  # fmt: skip
def test_an_output_that_is_no_report_is_not_taken_for_a_clean_one(text, said):
    with pytest.raises(script.Unable, match=said):
        script.read(text)


# --- compute-sanitizer: its runs -----------------------------------------------------------------

NAMES = list(script.subjects())
FAKE = r"""#!{python}
import sys, time
tool, name = sys.argv[2], sys.argv[-1]
if "--help" in sys.argv:
    print("  --initcheck-address-space arg (=global)")
elif name == {slow!r}:
    print({race!r}, flush=True)
    time.sleep(60)
elif name == {lost!r}:
    sys.exit("it broke")
else:
    assert ("--initcheck-address-space" in sys.argv) == (tool == "initcheck")
    print({bad!r} if tool == "memcheck" and ":" in name else {clean!r})
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A compute-sanitizer that finds every mutant with memcheck; one hangs, one breaks."""
    cut = RACES.rpartition("=========")[0]
    text = FAKE.format(
        python=sys.executable, slow=NAMES[-1], lost=NAMES[-2], race=cut, bad=OUTSIDE, clean=output()
    )
    (tmp_path / "compute-sanitizer").write_text(text)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(script, "PATIENCE", 2)
    return tmp_path


def test_each_subject_runs_under_each_tool_and_what_goes_wrong_is_recorded(fake):
    names = [NAMES[0], NAMES[len(BASES)], NAMES[-2], NAMES[-1]]
    results = script.run_all(names, fake, jobs=4, limit=60)
    assert list(results) == [(name, tool) for tool in script.TOOLS for name in names]
    clean, found, lost, slow = (results[name, "memcheck"] for name in names)
    assert clean["found"] is False
    assert found["found"] is True and found["lines"] == [50]
    assert lost == {"found": None, "problem": "it broke"}
    assert slow["found"] is True and slow["problem"] == "not done after 2 s"


def test_runs_that_the_time_does_not_suffice_for_are_recorded_as_such(fake):
    results = script.run_all(NAMES[:2], fake, jobs=1, limit=0)
    assert {r["problem"] for r in results.values()} == {"not run: 0 s were over"}


def test_a_tool_that_cannot_run_here_ends_it_at_once(fake):
    with pytest.raises(script.Unable, match="does not work here"):
        script.run_all([NAMES[-2]], fake, jobs=1, limit=60)


@pytest.mark.parametrize("name, said", [
    (BASES[0].name, None),
    (BASES[4].name, None),
    ("vector: float4 load on an odd row", "line 12 of kernel.cu"),
])  # fmt: skip
def test_the_process_that_the_tools_watch_makes_the_launch(name, said, monkeypatch, capfd):
    """With the PTX machine in CuPy's place."""
    calls = []
    device = SimpleNamespace(synchronize=lambda: calls.append("synchronize"))
    cuda = SimpleNamespace(set_allocator=calls.append, Device=lambda: device)
    cupy = SimpleNamespace(RawModule=ptx.RawModule, asarray=np.asarray, empty=ptx.empty, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(script.os, "_exit", calls.append)
    script.launch(name)
    assert calls == [None, *([] if said else ["synchronize"]), 0]
    printed = capfd.readouterr().out
    assert (said or "") in printed and printed.endswith(f"{script.OVER}\n")


def test_without_a_gpu_it_says_so_and_shows_its_commands(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert script.main([]) == 2
    assert "There is no NVIDIA GPU here" in capsys.readouterr().err
    assert script.main(["--dry"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == f"{4 * len(NAMES)} runs" == f"{len(shown) - 1} runs"
    assert re.match(r"compute-sanitizer --tool memcheck .*--launch '?01_naive", shown[0])


def test_our_part_of_the_record_is_made_anew(tmp_path, capsys):
    none = {tool: {"found": None, "problem": "not run"} for tool in script.TOOLS}
    row = {"name": "01_naive: k < K", "planted": None, **none, "ours": []}
    row["name"] = next(m.name for m in PLANTED if m.kinds == ("out-of-bounds",))
    path = tmp_path / "sanitizers.json"
    script.write({"schema": 1, "rows": [row]}, path)
    assert script.main(["--ours", "--out", str(path)]) == 0
    ours = json.loads(path.read_text())["rows"][0]["ours"]
    assert [f["kind"] for f in ours] == ["out-of-bounds"]
    only = script.rows({(name, tool): none[tool] for name in NAMES for tool in none}, theirs=True)
    assert {r["ours"]["problem"] for r in only} == {"not run: --theirs"} and len(only) == len(NAMES)
    assert "runs lost: 4" in capsys.readouterr().out
    assert script.main(["--ours", "--out", str(tmp_path / "none.json")]) == 2


# --- compute-sanitizer: what it found on a GPU ---------------------------------------------------


@pytest.fixture(scope="module")
def record():
    if not script.OUT.is_file():
        pytest.skip(f"{script.OUT.name} is not there: benchmarks/compute_sanitizer.py makes it")
    return json.loads(script.OUT.read_text(encoding="utf-8"))


def test_every_row_of_the_record_is_of_a_kernel_as_it_is_today_and_of_what_we_find(record):
    subjects = script.subjects()
    for row in record["rows"]:
        launch = subjects[row["name"]]
        assert row["source_hash"] == launch.variant.source_hash, f"{row['name']} has changed"
        assert row["ours"] == script.ours(launch), "python benchmarks/compute_sanitizer.py --ours"
    lost = [(row["name"], t) for row in record["rows"] for t in script.TOOLS if "problem" in row[t]]
    assert len(lost) <= len(record["rows"]) // 10, lost
    assert sum(row["planted"] is not None for row in record["rows"]) >= 60


def test_compute_sanitizer_finds_nothing_in_the_right_kernels_either(record):
    right = [row for row in record["rows"] if not row["planted"]]
    assert len(right) >= 6
    assert not [(row["name"], t) for row in right for t in script.TOOLS if row[t]["found"]]


def test_what_compute_sanitizer_finds_we_find_at_one_of_its_lines(record):
    for row in record["rows"]:
        ours = {line for f in row["ours"] for line in (f["line"], f["other_line"])}
        for tool in script.TOOLS:
            if row[tool]["found"] and (row["name"], tool) not in OTHER_LINES:
                assert row["ours"], (row["name"], tool)
                assert ours & set(row[tool]["lines"]), (row["name"], tool)
