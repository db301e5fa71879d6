"""What a maintainer runs on measurements that a reader sends: `python -m sgemm_lab validate FILE…`.

`records.validate` says whether a file has the form of a record, and stops at the first mistake.
Here every mistake is named, with its place and the way out, and so is what a well-formed file may
not say: times that no such chip can reach, a ratio that its times contradict, another GPU than it
claims. Nothing but scratch is ever written.
"""

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sgemm_lab.devices import Device, device_named, devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.measure.bench import MAX_LAUNCHES, repeats
from sgemm_lab.measure.records import Run
from sgemm_lab.measure.release import COMMIT
from sgemm_lab.measure.schema import disorder, spread
from sgemm_lab.paths import MEASUREMENTS

OLDEST = datetime(2022, 12, 8, tzinfo=UTC)  # CUDA 12.0 came out; the book needs 12
OVERCLOCKED = 1.3  # times the boost clock of the data sheet, which GeForce cards exceed
PAIRS = repeats(math.inf, 1), repeats(1e-9, 1)  # the fewest and the most that are measured
ROUNDED = 1e-4  # records keep five digits
MOST_ALIKE = 3  # mistakes of one kind that are told before "and … more"
LONGEST = 500  # characters of one mistake


@dataclass(frozen=True)
class Report:
    """What was found in one file: problems, each with a way out, or facts, if it is good."""

    path: Path
    problems: tuple[str, ...] = ()
    facts: Mapping[str, str] | None = None

    def __str__(self) -> str:
        if self.problems:
            return "\n  ".join([f"{self.path.name}: not good to take", *self.problems])
        rows = (f"{name:22}{fact}" for name, fact in self.facts.items())
        return "\n  ".join([f"{self.path.name}: OK", *rows])

    __repr__ = __str__


def validate(path: Path | str) -> Report:
    """What is wrong with the file at `path`, or what a good one holds. Reads only."""
    path = Path(path)
    try:
        record = _read(path)
        problems = _told(_form(record))
    except records.RecordError as error:
        return Report(path, (str(error),))
    except RecursionError:
        return Report(path, ("is nested too deep for a record. Ask for the file as it was.",))
    if problems:
        return Report(path, problems)
    file = _File(path, record)
    problems = _told(_sense(file))
    return Report(path, problems) if problems else Report(path, facts=_facts(file))


Found = Iterable[str]  # problems of one kind


def _told(kinds: Iterable[Found]) -> tuple[str, ...]:
    """The problems, of each kind the first few."""
    told = []
    for found in map(list, kinds):
        told += (each[:LONGEST] + "…" * (len(each) > LONGEST) for each in found[:MOST_ALIKE])
        if more := len(found[MOST_ALIKE:]):
            told.append(f"… and {more} more like the last")
    return tuple(told)


# ----------------------------------------------------------------------------------- the form


def _read(path: Path) -> object:
    """What the file holds, NaN and infinity included. Raises RecordError if it is no JSON."""
    try:
        text = path.read_text("utf-8")
        return json.loads(text, parse_int=_int)
    except OSError as error:
        raise records.RecordError(f"can't be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise records.RecordError("is not text in UTF-8. Ask for the file as it was.") from None
    except json.JSONDecodeError as error:
        rest = text[error.pos :].rstrip()
        cut = any(word.startswith(rest) for word in _CUT)
        if cut or error.msg.startswith("Unterminated string"):
            what = f"ends in the middle, in line {error.lineno}. Ask for the whole file."
        else:
            what = f"is not JSON ({error.msg}), in line {error.lineno}. Ask for the file as it was."
        raise records.RecordError(what) from None


_CUT = "true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e-", "e+"  # or a part of it


def _int(text: str) -> int | float:
    """Infinity where no float can hold it."""
    return int(text) if len(text) < 300 else float(text)


# With this before them, runs are looked at whatever is wrong with the rest of the file.
_SESSION = {"started": "2023-01-01T00:00:00Z", "commit": None, "protocol": "?"}
_HEAD = dict.fromkeys(("gpu_name", "source", "label"), "?") | {
    "schema": records.SCHEMA,
    "gpu": next(iter(devices)),
    "provenance": dict.fromkeys(records.MACHINE[1:], "?"),  # the first is no part of it
}


def _form(record: object) -> Iterator[Found]:
    """Mistakes in the form; where there are any, the other rules make no sense."""
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind not in KINDS:
        yield [f'is no file of runs: "kind" is none of {", ".join(KINDS)}. Ask for the right file.']
        return
    yield (f"{place} is {value}. Measure again." for place, value in _not_finite(record))
    yield _unknown_gpu(record)
    runs, sessions = (_list(record, name) for name in ("runs", "sessions"))
    known = record if _is_known(record) else {**record, "gpu": _HEAD["gpu"]}
    yield _refused({**known, "runs": []} if runs else known)
    head = {**_HEAD, "kind": kind, "sessions": [_SESSION] * len(sessions)}
    yield (
        problem.replace("runs[0]", f"runs[{index}]")
        for index, run in enumerate(runs)
        for problem in _refused({**head, "runs": [run]})
    )


def _list(record: Mapping, name: str) -> list:
    found = record.get(name)
    return found if isinstance(found, list) else []


def _not_finite(value: object, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _not_finite(each, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _not_finite(each, f"{place}[{index}]")


def _is_known(record: Mapping) -> bool:
    return str(record.get("gpu")) in devices


def _unknown_gpu(record: Mapping) -> Found:
    if not _is_known(record):
        name = f"{record.get('gpu')!r} ({record.get('gpu_name')})"
        yield f"{records.unknown_gpu(name)} One line: SMs, boost clock, DRAM, L2, power, source."


def _refused(record: Mapping) -> Found:
    """What records.validate says, if anything."""
    try:
        records.validate(record, "")
    except records.RecordError as error:
        yield f"{str(error).removeprefix(': ')}. Measure again, or correct it."


# -------------------------------------------------------------------- what may not be said of it


@dataclass(frozen=True)
class _File:
    path: Path
    record: Mapping

    @property
    def device(self) -> Device:
        return devices[self.record["gpu"]]


def _name(file: _File) -> Found:
    gpu, kind = file.record["gpu"], file.record["kind"]
    wanted = {MEASURED: (f"{gpu}.json", f"repeat_{gpu}.json"), REPORTED: (f"{gpu}-*.json",)}[kind]
    if not any(map(file.path.match, wanted)):
        yield f'a {kind} file of "{gpu}" is called {wanted[0]}. Rename it.'


def _empty(file: _File) -> Found:
    if not file.record["runs"]:
        yield "has no runs. Ask for the file after a measurement."


def _gpu_name(file: _File) -> Found:
    found, wanted = file.record["gpu_name"], file.device
    other = device_named(found)
    # a report may not say which sibling it was
    if other != wanted and (other or file.record["kind"] == MEASURED):
        yield (
            f'"gpu" says {wanted.key}, which is {wanted.cuda_name}, but "gpu_name" says {found}. '
            "A sibling has other memory or clocks: give it a line of its own in "
            'sgemm_lab/devices.py, or correct "gpu".'
        )


def _date(file: _File) -> Found:
    now = datetime.now(UTC)
    for index, session in enumerate(file.record["sessions"]):
        at, text = f"sessions[{index}].started", session["started"]
        try:
            started = datetime.fromisoformat(text)
        except ValueError:
            yield f"{at} is {text}, which is no date. Correct it."
            continue
        if not OLDEST <= started <= now:
            which = "in the future" if started > now else f"before CUDA 12, of {OLDEST:%Y-%m-%d}"
            yield f"{at} is {text}, {which}. Correct it, and the clock of that machine."


def _commit(file: _File) -> Found:
    for index, session in enumerate(file.record["sessions"]):
        commit = session["commit"]
        if commit is not None and not COMMIT.fullmatch(commit):
            yield (
                f'sessions[{index}].commit is "{commit}", which names no commit. Ask for the one '
                "that was measured; null, if nobody knows."
            )


def _clock(file: _File) -> Found:
    device = file.device
    most = device.clock_mhz * (OVERCLOCKED if device.cuda_name.startswith("GeForce") else 1)
    for place, clock in _clocks(file.record):
        if clock > most:
            yield (
                f"{place} is {clock:g}; {device.name} has a boost clock of {device.clock_mhz} MHz. "
                "Is the unit MHz, and the GPU right?"
            )


def _clocks(record: Mapping) -> Iterator[tuple[str, float]]:
    """Where the file speaks of a clock, and the highest there, in MHz."""
    for name in ("sessions", "runs"):
        for index, each in enumerate(record.get(name, ())):
            if clock := each.get("clock_mhz"):
                highest = spread(clock)[2] if isinstance(clock, Mapping) else clock
                yield f"{name}[{index}].clock_mhz", highest


def _machine_state(file: _File) -> Found:
    """Asks `records.merge`, on copies without their runs."""
    booked = MEASUREMENTS / f"{file.record['gpu']}.json"
    if not booked.exists():
        return
    try:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / booked.name
            records.write(copy, {**records.read(booked), "runs": []})
            records.merge(copy, {**file.record, "runs": []})
    except records.RecordError as error:
        yield f"can't be merged into book/measurements: {error}"


def _twice(file: _File) -> Found:
    seen: dict[tuple, int] = {}
    for index, run in enumerate(file.record["runs"]):
        # others have several kernels that are nearest to one of ours
        own = records.identity(run), run["kernel"] if file.record["kind"] == REPORTED else None
        first = seen.setdefault(own, index)
        if first != index:
            yield f"runs[{index}]: the same kernel and size as runs[{first}]. Delete one."


def _step(run: Mapping, file: _File) -> Found:
    if run["step"] not in ladder:
        yield (
            f"there is no step {run['step']}. Take the file together with the kernel, or delete "
            "the run."
        )


def _macros(run: Mapping, file: _File) -> Found:
    if run["step"] not in ladder:
        return
    step, macros = ladder[run["step"]], run["macros"]
    lacking = [macro.name for macro in step.macros if macro.name not in macros]
    if problem := step.problem(**macros):
        yield f"no variant has these macros: {problem}"
    elif lacking:
        yield f"{', '.join(lacking)} of step {step.number} is not given. A run names every macro."
    elif (key := step(**macros).key) != run.get("kernel", key):
        yield f'"kernel" says {run["kernel"]}, step and macros say {key}. Correct the wrong one.'


def _order(run: Mapping, file: _File) -> Found:
    for name in ("ms", "cublas_ms"):
        if name in run and (wrong := disorder(run[name])):
            yield f"{name}: {wrong}. Correct it."


def _counts(run: Mapping, file: _File) -> Found:
    for name, (least, most) in (("repeats", PAIRS), ("launches", (1, MAX_LAUNCHES))):
        if not least <= run[name] <= most:
            yield f"{name} is {run[name]:g}; `bench` has {least} to {most}. Measure again with it."


def _ratio(run: Mapping, file: _File) -> Found:
    (fastest, _, slowest), (least, _, most) = spread(run["ms"]), spread(run["cublas_ms"])
    low, middle, high = (run["ratio"][name] for name in ("low", "median", "high"))
    least, most = least / slowest, most / fastest
    if not least * (1 - ROUNDED) <= low <= middle <= high <= most * (1 + ROUNDED):
        yield (
            f"the ratio {low:.5g} ≤ {middle:.5g} ≤ {high:.5g} is not cublas_ms / ms, which lies "
            f"between {least:.4g} and {most:.4g}. One of them was changed: measure again."
        )


def _rate(run: Mapping, file: _File) -> Found:
    device = file.device
    clock = max(device.clock_mhz, *(clock for _, clock in _clocks(file.record)), 0)
    peak = device.fp32_tflops * clock / device.clock_mhz
    flop = 2e-9 * run["M"] * run["N"] * run["K"]
    rates = {name: flop / spread(run[name])[0] for name in ("ms", "cublas_ms") if name in run}
    rates |= {"gflops": run["gflops"] / 1e3} if "gflops" in run else {}
    for name, rate in rates.items():
        if rate > peak:
            yield (
                f"{name} gives {rate:.4g} TFLOPS, more than the {peak:.4g} of all FP32 units of "
                f"{device.name}. Milliseconds? This GPU? No tensor cores (TF32)? Measure again."
            )


# The rules and the kinds of file that they hold for, in the order in which they are told.
KINDS = MEASURED, REPORTED = "measured", "reported"
_OF_A_FILE: Sequence[tuple[Callable[[_File], Found], Sequence[str]]] = (
    (_name, KINDS),
    (_empty, KINDS),
    (_gpu_name, KINDS),
    (_date, [MEASURED]),
    (_commit, [MEASURED]),
    (_clock, [MEASURED]),
    (_machine_state, [MEASURED]),
    (_twice, KINDS),
)
_OF_A_RUN: Sequence[tuple[Callable[[Mapping, _File], Found], Sequence[str]]] = (
    (_step, [MEASURED]),
    (_macros, [MEASURED]),
    (_order, [REPORTED]),
    (_counts, [MEASURED]),
    (_ratio, [MEASURED]),
    (_rate, KINDS),
)


def _sense(file: _File) -> Iterator[Found]:
    kind = file.record["kind"]
    yield from (rule(file) for rule, kinds in _OF_A_FILE if kind in kinds)
    for rule in (rule for rule, kinds in _OF_A_RUN if kind in kinds):
        yield (
            f"runs[{index}]: {problem}"
            for index, run in enumerate(file.record["runs"])
            for problem in rule(run, file)
        )


# ------------------------------------------------------------------------------ what it holds


def _facts(file: _File) -> dict[str, str]:
    record, runs = file.record, records.runs_of(file.record)
    facts = {"GPU": f"{record['gpu_name']} ({file.device.name})"}
    if record["kind"] == REPORTED:
        facts["reported by"] = record["source"]
    else:
        software = "driver {driver}, CUDA {cuda}, cuBLAS {cublas}, NVRTC {nvrtc}"
        facts["software"] = software.format(**record["provenance"])
        facts["measured"] = "; ".join(
            f"{session['started'][:10]}, commit {session['commit'] or 'not known'}"
            for session in record["sessions"]
        )
    sizes = sorted({(run.M, run.N, run.K) for run in runs}, key=lambda s: (math.prod(s), s))
    facts |= {
        "runs": f"{len(runs)}, of {len({run.kernel for run in runs})} kernels",
        "steps": _numbers(run.step for run in runs if run.step is not None),
        "sizes": " ".join(str(N) if M == N == K else f"{M}×{N}×{K}" for M, N, K in sizes),
    }
    if record["kind"] == MEASURED:
        same = [run.ratio[1] for run in runs if run.step == 0]
        facts["cuBLAS to itself"] = f"{min(same):.3f} to {max(same):.3f}" if same else "–"
        facts["of older kernels"] = stale(runs)
        facts["throttled"] = throttled(runs)
    return facts


def stale(runs: Sequence[Run]) -> str:
    """ "none", or how many runs are of kernels that have changed since, and what measures them."""
    old = [run for run in runs if run.stale]
    if not old:
        return "none"
    steps = _numbers(run.step for run in old)
    return f"{len(old)} of {len(runs)}; `python -m sgemm_lab bench {steps}` measures again"


def throttled(runs: Sequence[Run]) -> str:
    """During how many runs the chip lowered its clock, and why: "power cap in 12 of 300", "no"."""
    known = [run for run in runs if run.throttled is not None]
    if not known:
        return "not recorded"
    why = Counter(reason for run in known for reason in run.throttled)
    told = ", ".join(f"{reason} in {count}" for reason, count in why.most_common())
    return f"{told} of {len(known)} runs" if told else "no"


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, sorted(set(values))))


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab validate FILE…`: 0 if all are good, 1 if any is not."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab validate",
        description="Is a file of measurements good to take? Says what is in it, or what is wrong.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    reports = [_report(path) for path in parser.parse_args(argv).files]
    print("\n\n".join(map(str, reports)))
    return int(any(report.problems for report in reports))


def _report(path: Path) -> Report:
    """`validate`, which one file must not stop from reporting the others."""
    try:
        return validate(path)
    except Exception as error:
        return Report(
            path, (f"makes this program fail: {error!r}. That is its mistake: open an issue.",)
        )
