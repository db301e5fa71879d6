"""The audit: thirteen ways in which kernels are wrong, each tried on the reader's own machine.

The categories are those of "CUDA SGEMM optimization: naive vs shared-memory tiled" (reference R2
of this book), whose author went through them by reading. Here each is an experiment on the PTX
machine. Where there is a GPU, those that compare numbers can be made there as well.
An audit finds what its launches show: no experiment proves that there is nothing else.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from html import escape
from pathlib import Path
from textwrap import fill

from sgemm_lab.devices import device_named
from sgemm_lab.ladder import INTERFACE, Step, Variant, as_variant, ladder, own
from sgemm_lab.learn import trials
from sgemm_lab.learn.trials import ABSENT, FOUND, LONG, NONE, OPEN, Subject, Verdict
from sgemm_lab.measure.bench import Stand, commit_here
from sgemm_lab.measure.records import read_json, unknown_gpu, write_rows
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import cp, ptx
from sgemm_lab.show.bundle import Bundle, Cell
from sgemm_lab.show.tables import captioned, worded
from sgemm_lab.simt.machine import budget
from sgemm_lab.simt.names import plain

WIDTH = 98  # characters of a line of the plain text
_TONE = {FOUND: "x", ABSENT: "m"}  # classes of bundle.STYLE
_STYLE = """<style>.lab .topic{font-weight:600}.lab .evidence{display:block;min-width:16em;\
white-space:pre-wrap;overflow-wrap:anywhere}.lab span.m{color:var(--m)}
.lab.lab td:has(.topic,.evidence,.words,.x,.m),.lab.lab th:has(.words){text-align:left;\
vertical-align:top}
@media(max-width:40rem){.lab table:has(.evidence) thead{position:absolute;width:1px;\
overflow:hidden;clip-path:inset(50%)}
.lab tr:has(.evidence){display:grid;grid-template-columns:1fr 11em}
.lab.lab tr:has(.evidence)>*{border:0;padding:.15em 0}
.lab.lab tr:has(.evidence)>:last-child{grid-column:1/-1;padding-bottom:.5em;\
border-bottom:1px solid var(--f)}.lab .evidence{min-width:0}}</style>"""


@dataclass(frozen=True)
class Category:
    """One way to be wrong. `tested` says what is tried; `examine` gives verdict and evidence."""

    key: str
    title: str
    tested: str
    examine: Callable[[Subject], Verdict]


@dataclass(frozen=True)
class Entry:
    """What came of one category: one of VERDICTS, and the evidence, a sentence or two."""

    category: Category
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Audit:
    """All that was tried on one kernel. `.ok`: nothing was found, and nothing left untried.
    audit["races"] is an Entry."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def ok(self) -> bool:
        return {entry.verdict for entry in self.entries} <= {NONE, ABSENT}

    @property
    def found(self) -> tuple[str, ...]:
        """The keys of the categories in which something was found."""
        return tuple(e.category.key for e in self.entries if e.verdict == FOUND)

    def __getitem__(self, key: str) -> Entry:
        return next(entry for entry in self.entries if entry.category is _category(key))

    def __repr__(self) -> str:
        wide = max(len(entry.category.title) for entry in self.entries)
        lines = [f"Audit of {self.name}: {self._sum()}"]
        indent = {"initial_indent": " " * 6, "subsequent_indent": " " * 6}
        for entry in self.entries:
            lines.append(f"  {entry.category.title:<{wide}}  {entry.verdict}")
            lines += (fill(line, WIDTH, **indent) for line in entry.evidence.splitlines())
        return "\n".join(lines)

    def _sum(self) -> str:
        tried = sum(entry.verdict in (NONE, FOUND) for entry in self.entries)
        return f"findings in {len(self.found) or 'none'} of {tried} categories tried"

    def _repr_html_(self) -> str:
        rows = [
            [worded(e.category.title, "topic"), worded(e.verdict, _TONE.get(e.verdict, "words")),
             worded(e.evidence, "evidence")]
            for e in self.entries
        ]  # fmt: skip
        header = ["category", worded("verdict"), worded("evidence")]
        return captioned(header, rows, f"Audit of {self.name}: {self._sum()}.", _STYLE).html


def audit(
    subject: Variant | Step | str | Path,
    only: str | Iterable[str] | None = None,
    *,
    name: str | None = None,
    block: int | tuple[int, int] | None = None,
    tile: tuple[int, ...] | None = None,
    grid: Callable[[int, int], int | tuple[int, ...]] | None = None,
    shared_mem: int = 0,
    parameters: Iterable[str] | None = None,
    arch: str | None = None,
    on=ptx,
) -> Audit:
    """Try a kernel in all thirteen categories, or `only` in some ("races", "numbers", …).

    subject: a step or variant of the ladder, or a kernel of one's own as CUDA C++ or the path of
    its .cu file, row-major. `name` says which of several, or with which values a template:
    "tiled<32, 8>". How it is launched must be said: `block`, threads (x, y); `tile`, the rows and
    columns of C that a block computes, (BM, BN) or (BM, BN, BK), if that is not one for each
    thread; `grid`, a function of M and N, if that is not (⌈N/BN⌉, ⌈M/BM⌉); `shared_mem`, bytes of
    dynamic shared memory. Its parameters are recognised by their names, M, N, K, alpha, A, B, beta,
    C in any order and case; `parameters` gives these names in the kernel's order where it calls
    them otherwise. Without alpha and beta it computes C = A·B; with N alone, on square matrices.
    arch: the oldest architecture that one's own kernel is for, if not sm_75.
    on: with `cp`, numbers are compared on the GPU too, if nothing was found before.

    Raises ValueError or TypeError for what is no kernel or category, CompileError where the kernel
    doesn't compile, PtxError for what the PTX machine can't run. What the kernel does wrong never
    raises: it is a finding.
    """
    given = {"name": name, "block": block, "tile": tile, "grid": grid,
             "shared_mem": shared_mem, "parameters": parameters, "arch": arch}  # fmt: skip
    if isinstance(subject, Path) or (isinstance(subject, str) and subject.endswith(".cu")):
        subject = Path(subject).read_text(encoding="utf-8")
    if isinstance(subject, str):
        variant = theirs(subject, **given)
    elif any(given.values()):
        raise TypeError(f"{', '.join(given)} are for a kernel given as text; a step has its own.")
    else:
        variant = as_variant(subject)
        _ = variant.step.source  # refuses step 0, which has none
    if isinstance(only, str):
        only = (only,)
    wanted = CATEGORIES if only is None else [_category(key) for key in only]
    examined, there = Subject(variant), on is not ptx and Subject(variant, on)
    return Audit(_name(variant), tuple(_entry(each, examined, there) for each in wanted))


def _entry(category: Category, subject: Subject, there: Subject | bool) -> Entry:
    """`there`: the same on a GPU, if one is asked for."""
    with budget(LONG * subject.effort):
        if subject.refused:
            verdict = FOUND if category.key == "coupling" else OPEN
            return Entry(category, verdict, f"no launch is possible: {subject.refused}")
        if category.key not in WATCHED and subject.endless:
            return Entry(category, OPEN, "a launch of this kernel does not end")
        verdict, evidence = category.examine(subject)
        if category.key in WATCHED and verdict == NONE and subject.stopped:
            verdict, evidence = OPEN, f"no launch came to its end: {subject.stopped}"
        if there and category.key in COMPARED and verdict == NONE:
            verdict, evidence = _compared(category, subject, there, evidence)
    return Entry(category, verdict, evidence)


def _compared(category: Category, subject: Subject, there: Subject, evidence: str) -> Verdict:
    """What comes of it on a GPU, of a kernel that is right on the PTX machine: a store to anywhere
    would end the process's use of the GPU."""
    if any(watched.profile.findings for watched in subject.watched):
        return NONE, f"{evidence}; not tried on the GPU, for what was found here"
    try:
        verdict, seen = category.examine(there)
    except RuntimeError as error:  # CUDA's own
        return FOUND, f"on the GPU: {error}"
    except ValueError as error:  # this GPU is too old for the kernel
        return NONE, f"{evidence}; not on the GPU: {error}"
    if verdict == OPEN:
        return NONE, f"{evidence}; not on the GPU: {seen}"
    return verdict, f"{seen}{TOO}" if verdict == NONE else f"on the GPU: {seen}"


def _category(key: str) -> Category:
    for category in CATEGORIES:
        if key in (category.key, category.title):
            return category
    raise ValueError(
        f"there is no category {key!r}; there are {', '.join(c.key for c in CATEGORIES)}"
    )


def _name(variant: Variant) -> str:
    step = variant.step
    changed = step.text is not None and step.number > 0
    name = step.filename if step.number > 0 else plain(step.function)
    setting = f" ({variant.label})" if variant.label != "default" else ""
    return f"{name}{', changed' * changed}{setting}"


# --- a kernel of one's own ------------------------------------------------------------------------

_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # brackets, three deep
_KERNEL = re.compile(
    rf"__global__\s+(?:(?:void|static|inline)\s+|__launch_bounds__\s*{_NESTED}\s*)*"
    r"(\w+)\s*\(([^)]*)\)\s*\{"
)
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NEEDED = {"A", "B", "C"}
_SIZES = {"M", "N", "K"}


def theirs(
    code, block, tile=None, grid=None, shared_mem=0, parameters=None, name=None, arch=None
) -> Variant:
    """A reader's kernel as a variant; see `audit`. ValueError says what is missing."""
    found = dict(_KERNEL.findall(_COMMENTS.sub("", code)))
    if name is None and len(found) == 1:
        (name,) = found
    base = (name or "").partition("<")[0].split("::")[-1]
    if base not in found:
        raise ValueError(
            f"the text must hold one __global__ kernel, or name= says which is meant; it holds "
            f"{', '.join(found) or 'none'}."
        )
    if block is None:
        raise ValueError(f"{base}: which threads has a block? Pass block=(x, y), such as (16, 16).")
    block = _whole(base, "block", block, 2)
    tile = _whole(base, "tile", tile or block[::-1], 3)
    capability = re.fullmatch(r"sm_(\d+)(\d)", arch or "sm_75")
    if not capability:
        raise ValueError(f"{base}: arch={arch!r} is no architecture; it looks like sm_80.")
    variant = own(
        code, base, block, tile, parameters=_parameters(base, found[base], parameters),
        blocks=grid and (lambda M, N: _extent(grid(M, N))), dynamic_bytes=shared_mem,
        min_capability=tuple(map(int, capability.groups())),
    )  # fmt: skip
    return replace(variant, step=_instance(variant.step, name, found[base]))


def _whole(kernel: str, what: str, given, most: int) -> tuple[int, ...]:
    """One to `most` whole numbers from 1 on, filled up with ones."""
    numbers = tuple(given) if isinstance(given, tuple | list) else (given,)
    if len(numbers) > most or not all(isinstance(n, int) and n >= 1 for n in numbers):
        raise ValueError(f"{kernel}: {what}={given!r} is not 1 to {most} whole numbers from 1 on.")
    return (*numbers, 1, 1)[:most]


def _extent(grid: int | tuple[int, ...]) -> tuple[int, ...]:
    return grid if isinstance(grid, tuple) else (int(grid),)


def _instance(step: Step, name: str, declared: str) -> Step:
    """The kernel under the name that it has in its PTX; a template is instantiated."""
    compiled = partial(nvrtc.compile_ptx, filename=step.filename)
    if "<" in name:
        step = replace(step, text=f"{step.text}\ntemplate __global__ void {name}({declared});\n")
    elif re.search(rf"\.entry {name}\b", compiled(step.text).text):  # extern "C"
        return step
    return replace(step, function=compiled(step.text, names=(name,)).names[name])


def _parameters(name: str, declared: str, given: Iterable[str] | None) -> tuple[str, ...]:
    """The kernel's parameters under the names of INTERFACE."""
    theirs = [text.split("[")[0].replace("*", " ").split()[-1] for text in declared.split(",")]
    known = {each.lower(): each for each in INTERFACE}
    names = tuple(given or (known.get(each.lower().strip("_"), each) for each in theirs))
    strange = [each for each in names if each not in INTERFACE]
    lacks = _NEEDED - set(names) or ({"N"} - set(names) and {"N"})
    if strange or lacks or len(set(names)) < len(names) or len(names) != len(theirs):
        unknown = f" ({', '.join(strange)})" if strange else ""
        raise ValueError(
            f"{name}({declared.strip()}): its parameters are not all known by their names, "
            f"{', '.join(INTERFACE)}{unknown}. Name them in the kernel's order, such as "
            'parameters=("M", "N", "K", "A", "B", "C"). One that takes more, such as '
            "lda, can be a __device__ function that a kernel with these calls."
        )
    return names


# key, title, what is tried, trial. The trials of WATCHED look at the same launches.
CATEGORIES = tuple(Category(*row) for row in (
    ("bounds", "Out-of-bounds access",
     "every access of every thread against its array, and its alignment", trials.bounds),
    ("races", "Races on shared memory",
     "every two accesses of a block to one place, one a store, no barrier between", trials.races),
    ("barriers", "Divergent barriers, deadlock",
     "who arrives at each barrier, and who has returned before", trials.barriers),
    ("uninitialised", "Uninitialised memory",
     "every load of shared memory, and of C where beta is 0; variables that nobody set",
     trials.uninitialised),
    ("overflow", "Integer overflow",
     "blocks of products in which A, B or C has more than 2³² elements", trials.overflow),
    ("architectures", "Architecture-dependent code",
     "compiled for each architecture: does a block fit, are the bits the same",
     trials.architectures),
    ("warps", "Masks of warp primitives",
     "the lanes that a shuffle, vote or __syncwarp names, and those that come", trials.warps),
    ("ordering", "Memory order between blocks",
     "who touches what another block wrote; warps and blocks in other orders", trials.ordering),
    ("errors", "Errors that come up late",
     "launches that trap or do not end; a C that is too short", trials.errors),
    ("seams", "Seams between launches",
     "launches back to back, each on what the last one left", trials.seams),
    ("aliasing", "Aliasing",
     "one array for A and B; inputs that must stay; C in A's place", trials.aliasing),
    ("numbers", "Numbers",
     "float64 beside it at the shapes that break kernels; cancellation, subnormals, Inf, NaN",
     trials.numbers),
    ("coupling", "Latent coupling",
     "legal and illegal macros; a grid larger than need be", trials.coupling),
))  # fmt: skip
WATCHED = "bounds", "races", "barriers", "uninitialised", "warps", "ordering", "errors"
COMPARED = "overflow", "seams", "aliasing", "numbers", "coupling"
TOO = ", on the GPU too"


# --- the ladder's audits, recorded ----------------------------------------------------------------

RECORD = MEASUREMENTS / "audits.json"
_SIGNS = {NONE: "•", FOUND: "✗", ABSENT: "–", OPEN: "?"}


def recorded(record: Path = RECORD) -> dict[int, Audit]:
    """Step → its audit as recorded by `python -m sgemm_lab audit --record`. LookupError for a step
    whose audit is missing or of another version of its kernel."""
    rows, found = read_json(record)["rows"], {}
    for variant in (step() for step in ladder if step.function):
        row = rows.get(variant.key, {})
        if row.get("source_hash") != variant.source_hash:
            raise LookupError(
                f"{variant.key} has no audit here: python -m sgemm_lab audit --record"
            )
        entries = (Entry(each, *row["entries"][each.key]) for each in CATEGORIES)
        found[variant.step.number] = Audit(_name(variant), tuple(entries))
    return found


def audits(record: Path = RECORD) -> Bundle:
    """The recorded audits of all steps: a row for each category, a column for each step. Under it,
    what was compared on GPUs."""
    found = recorded(record)
    header = ["category, and what is tried", *map(str, found)]
    rows = [
        [_explained(each), *(_SIGNS[one[each.key].verdict] for one in found.values())]
        for each in CATEGORIES
    ]
    signs = ", ".join(f"{sign} {verdict}" for verdict, sign in _SIGNS.items())
    there = "".join(map(_told, sorted(record.parent.glob(f"{record.stem}_*.json"))))
    caption = f"Audits of the steps at their defaults: {signs}.{there}"
    return captioned(header, rows, caption, _STYLE)


def _told(record: Path) -> str:
    """What was compared on a GPU, in a sentence."""
    rows, steps = read_json(record)["rows"], [step() for step in ladder if step.function]
    fresh = [
        rows[each.key]["entries"]
        for each in steps  # a step that is newer than this record waits for its GPU
        if rows.get(each.key, {}).get("source_hash") == each.source_hash
    ]
    compared = [Entry(_category(key), *one[key]) for one in fresh for key in COMPARED]
    there = [e for e in compared if e.evidence.endswith(TOO) or e.verdict == FOUND]
    found = sum(e.verdict == FOUND for e in there)
    return (
        f" On {read_json(record)['gpu_name']} the numbers of {len(there)} were compared again: "
        f"{found or 'nothing'} found."
    )


def _explained(category: Category) -> Cell:
    tested = f'<br><span class="m">{escape(category.tested)}</span>'
    return Cell(category.title, worded(category.title, "topic").markup + tested)


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab audit 2 TILE=16`, or `audit my.cu --block 16 16`: exit code 0 if nothing
    is found, 1 if something is or could not be tried, 2 if misasked."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab audit", description="Try kernels in thirteen categories."
    )
    parser.add_argument(
        "what", nargs="*", help="steps (2 or 02_tiled) and macros (TILE=16), or a .cu file"
    )
    parser.add_argument("--name", help="of a file: the kernel, such as tiled or tiled<32>")
    parser.add_argument("--block", type=int, nargs="+", help="of a file: threads of a block, x y")
    parser.add_argument("--tile", type=int, nargs="+", help="of a file: what a block computes of C")
    parser.add_argument("--gpu", action="store_true", help="compare numbers on the GPU as well")
    parser.add_argument("--record", action="store_true", help="keep it, for the pages to show")
    parser.add_argument("--commit", help="where this copy came from, if it is no git checkout")
    given = parser.parse_args(argv)
    if given.gpu and cp is ptx:
        print("There is no NVIDIA GPU here. Without --gpu everything is tried.", file=sys.stderr)
        return 2
    rows, ok, on = {}, True, cp if given.gpu else ptx
    try:
        if given.what and given.what[0].endswith(".cu"):
            print(found := audit(given.what[0], name=given.name, block=given.block,
                                 tile=given.tile, on=on))  # fmt: skip
            return 0 if found.ok else 1
        for variant in ladder.asked(given.what):
            if not variant.step.function:
                continue
            print(found := audit(variant, on=on), flush=True)
            ok &= found.ok
            entries = {e.category.key: [e.verdict, e.evidence] for e in found.entries}
            rows[variant.key] = {"source_hash": variant.source_hash, "entries": entries}
    except (KeyError, ValueError, ImportError, nvrtc.CompileError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if given.record:
        path, head = _place(given.commit) if given.gpu else (RECORD, {})
        rows = (read_json(path)["rows"] if path.exists() else {}) | rows
        defaults = (step().key for step in ladder if step.function)
        write_rows(path, {key: rows[key] for key in defaults if key in rows}, **head)
    return 0 if ok else 1


def _place(commit: str | None) -> tuple[Path, dict]:
    """The file that this machine's GPU has, and what it says of the machine."""
    stand = Stand()
    device = device_named(stand.gpu_name)
    if device is None:
        raise SystemExit(unknown_gpu(stand.gpu_name))
    taken = {"date": date.today().isoformat(), "commit": commit or commit_here()}
    head = {"gpu": device.key, "gpu_name": stand.gpu_name,
            "provenance": stand.provenance() | taken}  # fmt: skip
    return RECORD.with_name(f"{RECORD.stem}_{device.key}.json"), head
