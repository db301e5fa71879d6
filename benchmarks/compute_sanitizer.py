"""Who finds the planted bugs of tests/mutants.py: NVIDIA's compute-sanitizer, and the PTX machine.

    python benchmarks/compute_sanitizer.py [--out FILE] [--commit HASH] [--jobs N] [--limit 360]
    python benchmarks/compute_sanitizer.py --dry          the commands, on any machine
    python benchmarks/compute_sanitizer.py --ours         what the PTX machine finds, anew: no GPU
    python benchmarks/compute_sanitizer.py --theirs       the tools' part only; --ours adds the rest

A row counts while its kernel is the one that ran: the tests refuse it when the text has changed.

Each right kernel and each mutant is launched once under each tool (memcheck, racecheck, initcheck,
synccheck), every time by a process of its own, since a bug may leave CUDA unusable. CuPy compiles
the kernel with line information and launches it with the arguments that the PTX machine gets; its
memory pool is off and arrays are as long as they should be, so that what lies outside is outside.
A run that fails or takes too long is recorded as such and stops no other.

It needs CuPy, NumPy, tqdm and compute-sanitizer on the path. Exit code 2: this machine cannot do
it.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from hardware_counters import Unable, provenance_of, write  # noqa: E402
from mutants import BASES, MUTANTS, Launch  # noqa: E402

from sgemm_lab.devices import device_named  # noqa: E402
from sgemm_lab.paths import MEASUREMENTS  # noqa: E402

OUT = MEASUREMENTS / "sanitizers.json"
TOOLS = {  # tool → its options; errors of the API are consequences of what is found in a kernel
    "memcheck": ("--report-api-errors", "no", "--padding", "16384"),
    "racecheck": (),
    "initcheck": ("--check-api-memory-access", "no"),
    "synccheck": (),
}
EVERYWHERE = "--initcheck-address-space"  # with "all" initcheck looks at shared memory too, if new
PATIENCE = 25  # seconds for a run
LIMIT = 360  # seconds for all runs
JOBS = max(1, (os.cpu_count() or 2) - 2)  # at a time: a run is mostly Python and the compiler
SHOWN = 20  # reports that a run prints
FILE = "kernel.cu"  # what reports call the source
OVER = "The launch is over."  # what a process prints that came so far

_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: \d+ hazards? displayed \()(\d+) error"
)
_BLOCK = re.compile(r"^=========[ ](\S.*(?:\n=========[ ]{2,}\S.*)*)", re.MULTILINE)
_REPORT = re.compile(
    r"(?:\w+: )?(?:\([\w ]+\) )?"  # severity; "(Warp Level Programming)"
    r"(?:Invalid|Misaligned|Uninitialized|Potential|Barrier error|Race reported|Deadlock)"
)
_LINE = re.compile(rf"\bin (?:\S*/)?{re.escape(FILE)}:(\d+)")


def subjects() -> dict[str, Launch]:
    """Every launch by name: the right kernels, then the mutants."""
    right = {base.name: base.launch() for base in BASES}
    return right | {mutant.name: mutant.launch for mutant in MUTANTS}


def launch(name: str) -> None:
    """One launch on this machine's GPU; under compute-sanitizer, which reports what it sees."""
    import cupy

    cupy.cuda.set_allocator(None)
    chosen = subjects()[name]
    variant = chosen.variant
    options = ("-lineinfo", *variant.options)  # C++17 is NVRTC's default
    module = cupy.RawModule(code=f'#line 1 "{FILE}"\n{variant.step.source}', options=options)
    kernel = module.get_function(variant.step.function)
    arguments = chosen.arguments(cupy.asarray, cupy.empty)
    try:
        kernel(chosen.grid, variant.block, arguments)
        cupy.cuda.Device().synchronize()
    except Exception as error:  # CuPy has several types for what a broken kernel leaves
        print(f"The launch failed: {error}")
    print(OVER, flush=True)
    os._exit(0)  # nothing can be freed where a kernel broke the context


# -------------------------------------------------------------------------------- the reports


def read(output: str) -> dict:
    """What compute-sanitizer says in its output.

    found; errors (its own count); kinds (in its words) and lines of the source, each once, in the
    order in which they come. Raises Unable where the output ends early or cannot be understood.
    """
    blocks = _BLOCK.findall(output)
    reports = [block for block in blocks if _REPORT.match(block)]
    kinds = dict.fromkeys(map(_kind, reports))
    lines = dict.fromkeys(int(line) for report in reports for line in _LINE.findall(report))
    summary = _SUMMARY.search(output)
    failures = sum(block.startswith("Program hit") for block in blocks)  # of CUDA, afterwards
    whole = OVER in output and summary is not None and int(summary[1]) <= failures
    if not reports and not whole:
        raise Unable(output[-300:].strip() or "it wrote nothing")
    errors = int(summary[1]) if summary else len(reports)
    return {"found": bool(reports), "errors": errors, "kinds": list(kinds), "lines": list(lines)}


def _kind(report: str) -> str:
    """A report in short: "Invalid __global__ read of size 4 bytes: out of bounds"."""
    accesses = re.findall(r"(\w+) access at", report)
    if accesses:
        return "Race: " + ", ".join(dict.fromkeys(accesses))
    head = re.sub(r" detected at .*", "", report.splitlines()[0]).rstrip(" .:")
    what = re.search(r" is (misaligned|out of bounds)", report)
    return f"{head}: {what[1]}" if what else head


# ----------------------------------------------------------------------------------- the runs


def command(name: str, tool: str, extra: Sequence[str] = ()) -> list[str]:
    """The call that runs one subject under one tool."""
    return [
        "compute-sanitizer", "--tool", tool, *TOOLS[tool], *extra,
        "--show-backtrace", "no", "--print-limit", str(SHOWN), "--launch-timeout", str(PATIENCE),
        sys.executable, str(Path(__file__).resolve()), "--launch", name,
    ]  # fmt: skip


def run(name: str, tool: str, extra: Sequence[str], raw: Path, seconds: float) -> dict:
    """One run's result as `read` gives it, or {"found": None, "problem": why}; keeps its output."""
    path = raw / f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)}.{tool}.txt"
    problem = None
    with path.open("wb") as out:
        process = subprocess.Popen(
            command(name, tool, extra), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            problem = f"not done after {seconds:.0f} s"
            os.killpg(process.pid, signal.SIGKILL)  # the process and what it started
            process.wait()
    try:
        result = read(path.read_text(errors="replace"))
    except Unable as unread:
        result = {"found": None, "problem": str(unread)}
    if problem:
        result = result if result["found"] else {"found": None}
        result["problem"] = problem
    return result


def run_all(names: Sequence[str], raw: Path, jobs: int, limit: float) -> dict:
    """The result of every (subject, tool), `jobs` at a time. What `limit` seconds do not suffice
    for, or an interruption prevents, is recorded as not run."""
    from tqdm import tqdm

    extra = {tool: () for tool in TOOLS}
    if EVERYWHERE in _output("compute-sanitizer", "--help"):
        extra["initcheck"] = (EVERYWHERE, "all")
    ends = time.monotonic() + limit
    first = run(names[0], "memcheck", (), raw, 2 * PATIENCE)
    if first["found"] is not False:
        raise Unable(f"compute-sanitizer does not work here. {names[0]}: {json.dumps(first)}")

    def one(pair: tuple[str, str]) -> dict:
        left = ends - time.monotonic()
        if left < 1:
            return {"found": None, "problem": f"not run: {limit:.0f} s were over"}
        return run(*pair, extra[pair[1]], raw, min(PATIENCE, left))

    pairs = [(name, tool) for tool in TOOLS for name in names]
    results = {pair: {"found": None, "problem": "not run: interrupted"} for pair in pairs}
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(one, pair): pair for pair in pairs}
        try:
            for done in tqdm(as_completed(running), total=len(pairs), unit="run", mininterval=5):
                results[running[done]] = done.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("interrupted; what was seen till now is recorded", file=sys.stderr)
    return results


def _output(*words: str) -> str:
    """What a command prints; "" where it is missing or fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


# --------------------------------------------------------------------------------- the record


def ours(chosen: Launch) -> list[dict] | dict:
    """What the PTX machine finds; {"problem": …} where it cannot run here."""
    try:
        findings, _ = chosen.run()
    except Exception as error:  # whatever it is, the rest of the record stands without it
        return {"problem": f"{type(error).__name__}: {error}"}
    return [{"kind": f.kind, "line": f.line, "other_line": f.other_line} for f in findings]


def rows(results: Mapping[tuple[str, str], dict], theirs: bool = False) -> list[dict]:
    """A row for each subject: what was planted, what the tools found, what we find (if not only
    `theirs` is asked for)."""
    planted = {
        mutant.name: {"kinds": mutant.kinds, "lines": sorted(mutant.lines)} for mutant in MUTANTS
    }
    return [
        {
            "name": name,
            "source_hash": chosen.variant.source_hash,
            "planted": planted.get(name),
            **{tool: results[name, tool] for tool in TOOLS},
            "ours": {"problem": "not run: --theirs"} if theirs else ours(chosen),
        }
        for name, chosen in subjects().items()
    ]


def header(commit: str | None) -> dict:
    """GPU and provenance. Raises Unable where there is no GPU or no compute-sanitizer."""
    name = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").strip()
    tool = re.search(r"Version (\S+)", _output("compute-sanitizer", "--version"))
    if not name or not tool:
        missing = "compute-sanitizer (of the CUDA toolkit)" if name else "NVIDIA GPU"
        raise Unable(f"There is no {missing} here. --dry shows the commands.")
    name = name.splitlines()[0]
    device = device_named(name)
    known = provenance_of(commit)
    return {
        "schema": 1,
        "kind": "sanitizers",
        "gpu": device.key if device else name,
        "gpu_name": name,
        "provenance": {
            "driver": known["driver"],
            "compute_sanitizer": tool[1],
            "cupy": _version("cupy-cuda13x") or _version("cupy-cuda12x"),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": known["commit"],
        },
        "tools": TOOLS,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def told(record: Mapping) -> str:
    """How many mutants each tool found, in a sentence."""
    mutants = [row for row in record["rows"] if row["planted"]]
    counts = [f"{tool} {sum(row[tool]['found'] is True for row in mutants)}" for tool in TOOLS]
    lost = sum(row[tool]["found"] is None for row in record["rows"] for tool in TOOLS)
    own = sum(isinstance(row["ours"], list) and bool(row["ours"]) for row in mutants)
    found = ", ".join([*counts, f"PTX machine {own}"])
    return f"of {len(mutants)} mutants found: {found}; runs lost: {lost}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="print the commands, run none")
    parser.add_argument("--ours", action="store_true", help="anew in --out: the PTX machine's part")
    parser.add_argument("--out", type=Path, default=OUT, help="default: %(default)s")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    parser.add_argument("--theirs", action="store_true", help="leave out the PTX machine's part")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes at a time (%(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all (%(default)s)")
    parser.add_argument("--raw", type=Path, help="directory that keeps what the tools wrote")
    parser.add_argument("--launch", choices=subjects(), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.launch:
        launch(given.launch)
    if given.dry:
        every = [command(name, tool) for tool in TOOLS for name in subjects()]
        print(*map(shlex.join, every), f"{len(every)} runs", sep="\n")
        return 0
    try:
        if given.ours:
            record = json.loads(given.out.read_text(encoding="utf-8"))
            every = subjects()
            for row in record["rows"]:
                row["ours"] = ours(every[row["name"]])
        else:
            record = header(given.commit)
            with tempfile.TemporaryDirectory() as temporary:
                raw = given.raw or Path(temporary)
                raw.mkdir(parents=True, exist_ok=True)
                record["rows"] = rows(
                    run_all(list(subjects()), raw.resolve(), given.jobs, given.limit), given.theirs
                )
    except (Unable, FileNotFoundError, KeyError) as problem:
        print(problem, file=sys.stderr)
        return 2
    write(record, given.out)
    print(f"{given.out}: {told(record)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
