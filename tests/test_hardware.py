"""The PTX machine against an H200: the book's own kernels, as Nsight Compute counted them.

`benchmarks/hardware_counters.py` writes book/measurements/ncu_h200.json on a GPU. There the kernels
were compiled for sm_90; here the PTX for the oldest and for that architecture must both count the
same. By default the defaults are compared, at the small shapes.
"""

import ast
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from conftest import benchmark

from sgemm_lab.ladder import Variant, ladder, source_hash
from sgemm_lab.paths import MEASUREMENTS, ROOT
from sgemm_lab.run.nvrtc import compile_ptx
from sgemm_lab.run.profile import profile
from sgemm_lab.simt.counters import Counters

HARDWARE = MEASUREMENTS / "ncu_h200.json"
ARCHS = "compute_75", "compute_90"
SHARE = 0.98  # of the compared numbers must be equal
PROCESSES = 5

# Every number that differs, and why: (arch, kernel, "M×N×K", counter) → reason.
KNOWN: Mapping[tuple[str, str, str, str], str] = {}


script = benchmark("hardware_counters")


# ------------------------------------------------------------------------------ the comparison


@dataclass(frozen=True)
class Number:
    """One counter of one launch: what the hardware counted, and what we count."""

    arch: str
    kernel: str
    size: str
    counter: str
    hardware: int
    ours: int

    @property
    def place(self) -> tuple[str, str, str, str]:
        return self.arch, self.kernel, self.size, self.counter


def current(row: Mapping) -> bool:
    """Whether the kernel's tokens are still those that were counted."""
    return row["step"] in ladder and source_hash(ladder[row["step"]].source) == row["source_hash"]


def compare(record: Mapping, arch: str, wanted: Callable = lambda variant, size: True):
    """The Numbers of every current row whose (variant, (M, N, K)) is wanted."""
    numbers = []
    for row in filter(current, record["rows"]):
        variant, size = ladder[row["step"]](**row["macros"]), (row["M"], row["N"], row["K"])
        if not wanted(variant, size):
            continue
        missing = script.METRICS.keys() - row["counters"].keys() - set(record["missing"])
        assert not missing, f"{row['kernel']} lacks {', '.join(sorted(missing))}"
        ours = count(variant, size, arch)
        numbers += [
            Number(arch, variant.key, "×".join(map(str, size)), name, value, getattr(ours, name))
            for name, value in row["counters"].items()
        ]
    return numbers


def judge(numbers: Sequence[Number], known: Mapping = KNOWN) -> None:
    """Fails unless SHARE of the numbers are equal and the others are exactly the known ones."""
    different = [number for number in numbers if number.ours != number.hardware]
    unknown = [number for number in different if number.place not in known]
    lines = [
        f"{n.arch} {n.kernel} {n.size} {n.counter}: hardware {n.hardware:,}, here {n.ours:,} "
        f"({n.ours / n.hardware - 1:+.2%})" if n.hardware else f"{n.place}: hardware 0, {n.ours:,}"
        for n in unknown
    ]  # fmt: skip
    by_counter = Counter(number.counter for number in unknown)
    assert not unknown, "\n".join(
        [f"{len(unknown)} of {len(numbers)} differ, not known: {dict(by_counter)}", *lines[:60]]
    )
    gone = known.keys() & {n.place for n in numbers} - {n.place for n in different}
    assert not gone, f"no longer different, so no longer in KNOWN: {sorted(gone)}"
    share = 1 - len(different) / len(numbers)
    assert share >= SHARE, f"only {share:.2%} of {len(numbers)} numbers are equal"


_counted: dict[tuple, Counters] = {}


def count(variant: Variant, size: tuple[int, int, int], arch: str) -> Counters:
    """As `profile_variant`, for an architecture; once for those whose PTX is the same."""
    step, (M, N, K) = variant.step, size
    ptx = compile_ptx(step.source, variant.options, arch, step.filename).text
    key = re.sub(r"^\.target .*$", "", ptx, flags=re.MULTILINE), variant, size
    if key not in _counted:
        rng = np.random.default_rng(0)
        A, B = (rng.standard_normal(shape, dtype=np.float32) for shape in ((M, K), (K, N)))
        sizes, C = map(np.int32, size), np.empty((M, N), np.float32)
        args = *sizes, np.float32(1), A, B, np.float32(0), C
        _counted[key] = profile(
            step.source, step.function, variant.grid(M, N), variant.block, args,
            options=variant.options, arch=arch, filename=step.filename, sanitize=False,
        ).counters  # fmt: skip
    return _counted[key]


# ------------------------------------------------------------------------------ with the record


def small(variant: Variant, size: tuple[int, int, int]) -> bool:
    return size in script.SMALL


def small_default(variant: Variant, size: tuple[int, int, int]) -> bool:
    return size in script.SMALL and variant == variant.step()


def large(variant: Variant, size: tuple[int, int, int]) -> bool:
    return size == script.LARGE


@pytest.fixture(scope="module")
def hardware() -> dict:
    if not HARDWARE.exists():
        pytest.skip(f"no {HARDWARE.name} yet: run benchmarks/hardware_counters.py on an H200")
    record = json.loads(HARDWARE.read_text(encoding="utf-8"))
    if not any(map(current, record["rows"])):
        pytest.skip(f"every kernel has changed since {HARDWARE.name} was recorded")
    return record


@pytest.mark.parametrize("arch", ARCHS)
def test_the_machine_counts_what_the_hardware_counts(hardware, arch):
    judge(compare(hardware, arch, small_default))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_so_it_does_for_every_setting(hardware, arch):
    judge(compare(hardware, arch, small))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_so_it_does_at_1024(hardware, arch):
    judge(compare(hardware, arch, large))


def test_the_record_has_every_step_at_every_shape_and_two_more_settings_at_the_small_ones(hardware):
    """But for new steps at the end, which somebody with a GPU will count; a release needs them."""
    counted = {row["step"] for row in hardware["rows"]}
    assert counted == set(range(1, max(counted) + 1))
    for step in map(ladder.__getitem__, counted):
        rows = [row for row in hardware["rows"] if row["step"] == step.number]
        for shape in (*script.SMALL, script.LARGE):
            settings = [row["macros"] for row in rows if shape == (row["M"], row["N"], row["K"])]
            assert dict(step().macros) in settings
            assert len(settings) >= (1 if shape == script.LARGE else 3)


# ------------------------------------------------------------------------------ the judge, judged


SHAPE = 129, 65, 97


def _made(*variants: Variant) -> dict:
    """A record as the script writes it, in which the hardware counts what the machine counts."""
    rows = []
    for variant in variants:
        counters = count(variant, SHAPE, ARCHS[0])
        values = {name: getattr(counters, name) for name in script.METRICS}
        rows.append(script.Launch(variant, *SHAPE).row() | {"counters": values})
    return {"schema": 1, "kind": "counted", "missing": [], "rows": rows}


def _reread(record: dict, tmp_path) -> dict:
    script.write(record, tmp_path / "ncu.json")
    return json.loads((tmp_path / "ncu.json").read_text(encoding="utf-8"))


def test_a_record_that_agrees_passes_for_each_architecture(tmp_path):
    record = _reread(_made(ladder[1](), ladder[2](TILE=8, ACCUMULATORS=4)), tmp_path)
    for arch in ARCHS:
        numbers = compare(record, arch)
        assert len(numbers) == 2 * len(script.METRICS)
        judge(numbers)


@pytest.mark.parametrize("name", script.METRICS)
def test_one_wrong_number_fails_and_is_named(name, tmp_path):
    record = _made(ladder[2](TILE=16))
    record["rows"][0]["counters"][name] += 1
    with pytest.raises(AssertionError, match=rf"TILE=16.*129×65×97 {name}: hardware"):
        judge(compare(_reread(record, tmp_path), ARCHS[0]))


def test_a_counter_that_the_record_lacks_fails_unless_the_gpu_had_no_such_metric():
    record = _made(ladder[1]())
    del record["rows"][0]["counters"]["ffma"]
    with pytest.raises(AssertionError, match="lacks ffma"):
        compare(record, ARCHS[0])
    assert len(compare(record | {"missing": ["ffma"]}, ARCHS[0])) == len(script.METRICS) - 1


def test_a_row_of_a_kernel_that_has_changed_since_is_not_compared():
    record = _made(ladder[1](), ladder[2](TILE=16))
    record["rows"][0]["source_hash"] = "0" * 16
    assert {n.kernel for n in compare(record, ARCHS[0])} == {ladder[2](TILE=16).key}


def _numbers(many: int, different: int) -> list[Number]:
    equal = [Number(ARCHS[0], f"kernel {n}", "1×1×1", "ffma", 7, 7) for n in range(many)]
    return [replace(n, ours=8) if i < different else n for i, n in enumerate(equal)]


def test_a_known_difference_passes_while_98_percent_are_equal():
    known = {n.place: "a reason" for n in _numbers(3, 0)}
    judge(_numbers(150, 3), known)
    with pytest.raises(AssertionError, match=r"only 97\.99% of 149 numbers are equal"):
        judge(_numbers(149, 3), known)
    with pytest.raises(
        AssertionError,
        match=r"1 of 200 differ, not known: .*\n.*kernel 3 1×1×1 ffma: hardware 7, here 8",
    ):
        judge(_numbers(200, 4), known)


def test_a_known_difference_that_is_none_any_more_fails():
    known = {n.place: "a reason" for n in _numbers(3, 0)}
    with pytest.raises(AssertionError, match="no longer different"):
        judge(_numbers(150, 2), known)


# ------------------------------------------------------------------------------ the script


def test_the_dry_run_prints_every_launch(capsys):
    assert script.main(["--dry"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(script.launches()) + 2
    assert printed[-1] == f"{len(script.launches())} launches, 9 metrics each"
    for step in (step for step in ladder if step.function):
        for variant in script.spread(step):
            shapes = len(script.SMALL) + (variant == step())
            assert sum(variant.key in line for line in printed) == shapes
    assert "129×65×97           3×5×1     32×32×1" in "\n".join(printed)


def test_every_metric_belongs_to_a_counter():
    assert script.METRICS.keys() <= {field.name for field in fields(Counters)}
    assert len(set(script.METRICS.values())) == len(script.METRICS)


COLUMNS = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC"]


def _log(record: Mapping, **changes) -> str:
    """What ncu --csv --page raw prints for the launches of a record; `changes` are columns of the
    last row."""
    out = io.StringIO()
    out.write("==PROF== Connected to process 7 (/usr/bin/python3.12)\n")
    out.write('==PROF== Profiling "naive" - 0: 0%....50%....100% - 9 passes\n')
    table = csv.DictWriter(out, [*COLUMNS, *script.METRICS.values()], quoting=csv.QUOTE_ALL)
    table.writeheader()
    table.writerow(dict.fromkeys(COLUMNS, "") | dict.fromkeys(script.METRICS.values(), "inst"))
    for number, row in enumerate(record["rows"]):
        cells = dict.fromkeys(COLUMNS, "7") | {
            "ID": number,
            "Kernel Name": row["function"],
            "Grid Size": str(tuple(row["grid"])),
            "Block Size": str(tuple(row["block"])),
        }
        cells |= {m: f"{row['counters'][name]:,}" for name, m in script.METRICS.items()}
        last = number == len(record["rows"]) - 1
        table.writerow(cells | (changes if last else {}))
    out.write("==PROF== Disconnected from process 7\n")
    return out.getvalue()


@pytest.fixture
def made() -> dict:
    """A record with its counters, and under "launched" the same without, as the launcher has it."""
    record = _made(ladder[1](), ladder[2](TILE=16)) | {"gpu": "h200", "gpu_name": "NVIDIA H200"}
    rows = [{k: v for k, v in row.items() if k != "counters"} for row in record["rows"]]
    return record | {"launched": {**record, "rows": rows}}


def test_ncus_table_becomes_the_record(made, tmp_path, capsys):
    (tmp_path / script.MADE).write_text(json.dumps(made["launched"]))
    (tmp_path / script.LOG).write_text(_log(made))
    out = tmp_path / "ncu_h200.json"
    assert script.main(["--reread", "--raw", str(tmp_path), "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["rows"] == made["rows"]
    assert (record["gpu"], record["missing"]) == ("h200", [])
    assert "2 launches on NVIDIA H200; not counted: nothing" in capsys.readouterr().out


def test_a_metric_that_the_gpu_lacks_is_named_and_left_out(made):
    gone = script.METRICS["shared_store_wavefronts"]
    record = script.merge(made["launched"], _log(made).replace(gone, "another"))
    assert record["missing"] == ["shared_store_wavefronts"]
    assert "shared_store_wavefronts" not in record["rows"][0]["counters"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Grid Size": "(9, 5, 1)"}, r"launch 1: ncu saw .*\[9, 5, 1\]"),
        ({"Block Size": "(256, 1, 1)"}, "launch 1: ncu saw"),
        ({"Kernel Name": "naive(int, int)"}, "launch 1: ncu saw"),
        ({script.METRICS["ffma"]: "n/a"}, "launch 1, 02_tiled .*ffma.* is 'n/a', not a count"),
        ({script.METRICS["ffma"]: "1.5"}, "not a count"),
        ({"ID": ""}, "ncu saw 1 launches; 2 were made"),
    ],
)
def test_what_ncu_saw_must_be_what_was_launched(made, changes, message):
    with pytest.raises(script.Unable, match=message):
        script.merge(made["launched"], _log(made, **changes))


def test_a_log_without_a_table_is_shown():
    with pytest.raises(script.Unable, match="ERR_NVGPUCTRPERM"):
        script.merge({"rows": []}, "==PROF== x\n==ERROR== ERR_NVGPUCTRPERM: no permission\n")


FAKE_NCU = """#!{python}
import sys
from pathlib import Path
if "--query-metrics" in sys.argv:
    print(*(m.removesuffix(".sum") + " Counter" for m in {metrics} if m != {gone!r}), sep="\\n")
elif "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute\\nVersion 2025.3.1.0")
else:
    with open({calls!r}, "a") as calls:
        print(repr(sys.argv), file=calls)
    sys.exit(any({gone!r} in word for word in sys.argv))
"""


def test_what_ncu_refuses_and_does_not_list_is_left_out_of_a_second_try(
    tmp_path, monkeypatch, capsys
):
    metrics, calls = list(script.METRICS.values()), tmp_path / "calls"
    fake, gone = tmp_path / "ncu", metrics[-1]
    fake.write_text(
        FAKE_NCU.format(python=sys.executable, metrics=metrics, gone=gone, calls=str(calls))
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    script.count(tmp_path, "abc123")
    assert f"not in ncu --query-metrics: {gone}" in capsys.readouterr().out
    first, second = (ast.literal_eval(line) for line in calls.read_text().splitlines())
    assert ",".join(metrics) in first and ",".join(metrics[:-1]) in second
    assert "--clock-control none --target-processes all" in " ".join(second)
    functions = sorted({launch.variant.step.function for launch in script.launches()})
    assert f"regex:^({'|'.join(functions)})$" in second
    provenance = json.loads(second[-1])
    assert (provenance["ncu"], provenance["commit"]) == ("Version 2025.3.1.0", "abc123")


# ------------------------------------------------------------------------------ again and again


FRESH = """
import sys
from types import ModuleType
package = sys.modules["sgemm_lab"] = ModuleType("sgemm_lab")  # without what only notebooks need:
package.__path__ = ["sgemm_lab"]                              # that takes seconds to import
from sgemm_lab.ladder import ladder
from sgemm_lab.run.profile import profile_variant
print(profile_variant(ladder[2](), 129, 65, 97).counters)
"""


def _fresh(_) -> str:
    """The counters of one kernel, compiled and profiled in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    environment["SGEMM_LAB_BACKEND"] = "ptx"
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("processes", [PROCESSES, pytest.param(50, marks=pytest.mark.slow)])
def test_one_kernel_counts_the_same_in_fresh_processes(processes):
    with ThreadPoolExecutor(2) as pool:
        outputs = set(pool.map(_fresh, range(processes)))
    assert len(outputs) == 1 and "ffma=1966080," in outputs.pop()
