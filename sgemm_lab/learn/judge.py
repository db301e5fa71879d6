"""Judges a reader's kernel, on any machine, and awards bronze, silver or gold.

Bronze: right in every case. Silver: nothing for the sanitizer to find. Gold: the counters reach the
exercise's goals. exercises.py has the exercises; a try takes well under 5 seconds.

"Right" is asked twice. First on whole numbers that are the same at every try, so that the same
kernel hears the same sentence, with the element and what it holds instead. Then on random numbers,
new ones at every try: a kernel that has learnt the first ones by heart fails there, and what it is
told names none of the new ones. The launches that are counted are drawn anew, too.
"""

import html
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread, stack_size
from types import SimpleNamespace

import numpy as np

from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ARCH, ptx
from sgemm_lab.run.check import EPS
from sgemm_lab.run.profile import Profile, profile
from sgemm_lab.show.bundle import STYLE
from sgemm_lab.simt import host
from sgemm_lab.simt.machine import Fault, budget
from sgemm_lab.simt.ptx import PtxError

MEDALS = ("bronze", "silver", "gold")
ASKED = (
    "right in every case, on any numbers",
    "no race, nothing read that nobody wrote, no barrier that some threads miss",
)
FILENAME = "your kernel.cu"

# What a kernel may need. The solutions of the exercises need half of these at most.
MOST_TEXT = 1 << 16  # characters
MOST_PTX = 4000  # instructions; it grows where loops are unrolled
MOST_LOCAL = 1 << 14  # bytes a thread
MOST_EXECUTED = 15_000  # instructions of one launch
COMPILING = 15  # seconds
_STACK = 1 << 29  # bytes of address space: the compiler calls itself once for each nested bracket

_MARK = np.float32(12345)  # what C holds where the question is whether it was written
_WIDTH, _LINES = 400, 20  # characters of a line, and lines, that a message has at most

# Further words for what a compiler or the PTX machine says.
_ADVICE = (
    ("open source file", "Take the #include out: what CUDA itself has is known without one."),
    ("printf", "judge compares what is in the array at the end."),
    ("not inlined", "A function that calls itself, malloc and double's sin and exp are such, too."),
    ("too long to follow", "Unroll less."),
    ("is still running", "A correct kernel is done after far fewer."),
    ("no special register", "The result must not depend on it."),
    ("comes from cp.empty", "What nobody has written may be NaN, and 0 times NaN is NaN."),
    ("has 0 bytes of it", "judge launches without dynamic shared memory: give the array a size."),
    ("of given.cu", "Does your text name an element that lies outside of the tile?"),
)

# How messages name a line of the text that is compiled, and how they name one of given.cu.
_NAMED = (
    (r"your kernel\.cu, line (?P<n>\d+)", "given.cu, line {n}"),
    (r"\bline (?P<n>\d+) of your kernel\.cu", "line {n} of given.cu"),
    (r"\b(?P<word>at|of) line (?P<n>\d+)", "{word} line {n} of given.cu"),
    (r"^(?P<margin>[> ]*)(?P<n>\d+)(?= \| )", "{margin}{n}"),
)

Case = Mapping[str, float]  # the scalars of one launch by name


@dataclass(frozen=True)
class Problem:
    """What a kernel computes, and how it is launched.

    parameters: as the kernel declares them; arrays: (case) → shape by name; the one that is not
    const is the result. formula: (values by name, float64) → what the result should be, growing
    with each value's magnitude. cases: where it must be right. looked_at: where the sanitizer
    looks; counted: launches whose counters the goals see. slips: (values) → (what may have gone
    wrong, what the result would be then). tile: of a kernel with the ladder's interface. unread:
    (case) → the arrays that must not be read in it.
    """

    function: str
    parameters: str
    launched: str
    block: tuple[int, int]
    grid: Callable[[Case], tuple[int, ...]]
    arrays: Callable[[Case], dict[str, tuple[int, ...]]]
    formula: Callable[[SimpleNamespace], np.ndarray]
    cases: tuple[Case, ...]
    looked_at: tuple[Case, ...]
    counted: tuple[Case, ...]
    slips: Callable[[SimpleNamespace], Iterable[tuple[str, np.ndarray]]] = lambda values: ()
    tile: tuple[int, int, int] | None = None
    unread: Callable[[Case], Iterable[str]] = lambda case: ()

    @property
    def declared(self) -> list[tuple[str, str, str]]:
        """(qualified type, "*" or "", name) of each parameter."""
        return re.findall(r"((?:const )?\w+)(\*?) (\w+)", self.parameters)

    @property
    def result(self) -> str:
        return next(name for kind, star, name in self.declared if star and "const" not in kind)


@dataclass(frozen=True)
class Seen:
    """What goals look at: the text, its shared memory in bytes, a profile of each counted case."""

    code: str
    shared_bytes: int
    profiles: tuple[Profile, ...]

    @property
    def counters(self):
        return self.profiles[0].counters


@dataclass(frozen=True)
class Goal:
    """A figure for gold: `of` what was seen, `most` at most; `marks` are passed on the way; `kind`
    of access ("shared_store") whose worst line is named where the figure is too high."""

    what: str
    of: Callable[[Seen], float]
    most: float
    form: str = ",.0f"
    marks: tuple[float, ...] = ()
    kind: str = ""

    @property
    def asks(self) -> str:
        return f"{self.what}: {self.limit}"

    @property
    def limit(self) -> str:
        return f"at most {self.most:{self.form}}" if self.most else "none"

    def told(self, seen: Seen) -> tuple[bool, str]:
        """Whether it is reached, and how far the kernel is."""
        value = self.of(seen)
        # Rounded as it is shown: "0.40; the goal is at most 0.40" would be a riddle.
        if float(f"{value:{self.form}}".replace(",", "")) <= self.most:
            reached = f"{value:{self.form}}, {self.limit}" if self.most else self.limit
            return True, f"{self.what}: {reached}"
        steps = (f"{mark:{self.form}} would be a step, " for mark in self.marks if mark < value)
        now = f"{value:{self.form}}" if math.isfinite(value) else "not one was executed"
        asked = f"{next(steps, '')}the goal is {self.limit}"
        return False, f"{self.what}: {now}{self._where(seen)}; {asked}"

    def _where(self, seen: Seen) -> str:
        """ " (line 9: 32 sectors a load)": the line that takes most for an instruction."""
        space, _, verb = self.kind.partition("_")
        unit = "sectors" if space == "global" else "wavefronts"
        costs = [
            (count[unit] / count["instructions"], line)
            for (kind, line), count in seen.profiles[0].lines.items()
            if kind == self.kind
        ]
        if not costs:
            return ""
        most, line = max(costs)
        return f" (line {line}: {most:.3g} {unit} a {verb})"


@dataclass(frozen=True)
class Exercise:
    """A problem, its goals, hints from vague to plain. rest: what stands behind the reader's text
    where that is only a part of the kernel; step: of the ladder, to be timed beside it."""

    name: str
    title: str
    problem: Problem
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    rest: str = ""
    step: int | None = None

    @property
    def launched(self) -> str:
        return f"launched in {self.problem.launched}"

    @property
    def asks(self) -> list[tuple[str, str]]:
        """(medal, what it takes)."""
        return [*zip(MEDALS, ASKED, strict=False), *(("gold", goal.asks) for goal in self.goals)]


@dataclass(frozen=True)
class Verdict:
    """What `judge` found: `.medal` is "bronze", "silver", "gold" or None, `.solved` is gold.

    stages: (medal, "✓" reached, "✗" not, or "·" not tried yet, what is to be said). time: what a
    GPU took for it, where there is one.
    """

    name: str
    title: str
    launched: str
    stages: tuple[tuple[str, str, str], ...]
    time: str = field(default="", compare=False)

    @property
    def medal(self) -> str | None:
        reached = None
        for medal in MEDALS:
            if any(mark != "✓" for stage, mark, _ in self.stages if stage == medal):
                return reached
            reached = medal
        return reached

    @property
    def solved(self) -> bool:
        return self.medal == MEDALS[-1]

    @property
    def head(self) -> str:
        return f"Exercise {self.name}, {self.title}: {self.medal or 'no medal yet'}"

    def __repr__(self) -> str:
        lines = [self.head, f"  {self.launched}"]
        for medal, mark, text in self.stages:
            first, *more = text.splitlines()
            lines += [f"  {medal:6} {mark} {first}", *(f"           {line}" for line in more)]
        return "\n".join([*lines, *([f"  {self.time}"] if self.time else [])])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<dt class="{"a b" if mark == "✗" else "m" if mark == "·" else "b"}">{mark} {medal}'
            f"</dt><dd>{_shown(text)}</dd>"
            for medal, mark, text in self.stages
        )
        time = f"<figcaption>{html.escape(self.time)}</figcaption>" if self.time else ""
        return (
            f'<figure class="lab">{STYLE}{MEDALS_STYLE}<figcaption>{html.escape(self.head)}'
            f"<br>{html.escape(self.launched)}</figcaption><dl>{rows}</dl>{time}</figure>"
        )


MEDALS_STYLE = """<style>
.lab dl{display:grid;grid-template-columns:auto 1fr;gap:.2em .8em;margin:.3em 0;font-size:.875em}
.lab.lab dt{margin:0;font-weight:400;color:var(--i)}.lab.lab dt.m{color:var(--m)}
.lab.lab dt.b{font-weight:600}.lab.lab dt.a{color:var(--a)}
.lab.lab dd{margin:0;min-width:0;overflow-wrap:anywhere}
.lab p,.lab.lab details p{font-size:.875em;margin:.2em 0}.lab.lab details p{margin-left:1.2em}
.lab dd code{display:block;white-space:pre-wrap}
</style>"""
_QUOTE = re.compile(r"^[> ]? *\d+ \| ")


def _shown(text: str) -> str:
    """Lines as HTML, those of a kernel as code."""
    lines = [(line, html.escape(line, quote=False)) for line in text.splitlines()]
    rows = (f"<code>{row}</code>" if _QUOTE.match(line) else f"{row}<br>" for line, row in lines)
    return "".join(rows).removesuffix("<br>")


class Refused(Exception):
    """Why a kernel gets no further, in words; `line`: of its text, or 0."""

    def __init__(self, why: str, line: int = 0):
        super().__init__(why)
        self.line = line


def judged(exercise: Exercise, code: object) -> Verdict:
    """Compiles, checks and counts a reader's kernel. Never raises, whatever `code` is."""
    stages: list[tuple[str, str, str]] = []
    try:
        with budget(MOST_EXECUTED):
            for medal, reached in _reached(exercise, code):
                stages += [(medal, "✓" if good else "✗", text) for good, text in reached]
    except Exception as error:  # a notebook goes on, whatever a kernel did to compiler and machine
        stages.append((MEDALS[len(stages)], "✗", _why(error, exercise, code)))
    done = {medal for medal, *_ in stages}
    stages += [(medal, "·", text) for medal, text in exercise.asks if medal not in done]
    return Verdict(exercise.name, exercise.title, exercise.launched, tuple(stages))


def _reached(exercise: Exercise, code: object):
    """(medal, [(reached, what is to be said)]) of each medal. Raises Refused and others."""
    problem = exercise.problem
    text, shared_bytes = _compiled(exercise, code)
    rng = np.random.default_rng()
    cases = len(problem.cases)
    for number, case in enumerate(problem.cases, 1):
        with _said(f"case {number} of {cases}, {_label(case)}: "):
            _known(problem, text, case)
    for case in problem.cases[1::2]:
        with _said(f"{_label(case)}: "):
            _unknown(_try(problem, text, case, rng))
    random = f"in {len(problem.cases[1::2])} of them on random numbers, too"
    yield "bronze", [(True, f"right in {cases} cases, {random}")]
    profiles = []
    for case in (*problem.looked_at, *problem.counted):
        with _said(f"{_label(case)}: "):
            trial = _try(problem, text, case, rng, sanitize=True)
            # what only a barrier for the whole block mends comes first
            for found in sorted(trial.profile.findings, key=lambda f: "no __syncwarp" in f.message):
                raise Refused(found.message, found.line)
            _unknown(trial)
        profiles.append(trial.profile)
    yield "silver", [(True, ASKED[1])]
    seen = Seen(text, shared_bytes, tuple(profiles[len(problem.looked_at) :]))
    yield "gold", [goal.told(seen) for goal in exercise.goals]


# --- is it a kernel? ----------------------------------------------------------------------------


def _compiled(exercise: Exercise, code: object) -> tuple[str, int]:
    """The whole text of the kernel, and its bytes of shared memory."""
    if not isinstance(code, str):
        kind = type(code).__name__
        raise Refused(f"a kernel is a text in CUDA C++; this is {reprlib.repr(code)} ({kind})")
    if not code.strip():
        raise Refused("the text is empty")
    if len(code) > MOST_TEXT:
        raise Refused(f"the text has {len(code):,} characters; judge reads {MOST_TEXT:,}")
    if odd := re.search(r"[\0\ud800-\udfff]", code):
        line = code.count("\n", 0, odd.start()) + 1
        raise Refused(f"line {line} holds the character {odd[0]!r}, which no compiler reads")
    code = f"{code}\n{exercise.rest}"
    text = _in_time(lambda: nvrtc.compile_ptx(code, (), ARCH, FILENAME).text)
    if (size := text.count(";\n")) > MOST_PTX:
        raise Refused(
            f"the compiler makes {size:,} instructions of it; judge reads {MOST_PTX:,}. Put "
            "#pragma unroll 1 before a long loop."
        )
    program = host.load(text, code, FILENAME).program(exercise.problem.function)
    for size, most, what in (
        (program.shared_size, host.STATIC_SHARED, "a block needs {:,} bytes of shared memory"),
        (program.local_size, MOST_LOCAL, "a thread needs {:,} bytes for arrays of its own"),
    ):
        if size > most:
            raise Refused(f"{what.format(size)}; here it may have {most:,}. Use smaller arrays.")
    return code, program.shared_size


def _in_time(work: Callable):
    """What `work` returns. A compiler can't be stopped, but it can be left alone."""
    done: SimpleQueue = SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except Exception as error:
            done.put((None, error))

    before = stack_size(_STACK)
    try:
        Thread(target=run, daemon=True).start()
    finally:
        stack_size(before)
    try:
        result, error = done.get(timeout=COMPILING)
    except Empty:
        raise Refused(
            f"the compiler is not done with it after {COMPILING} seconds. Unroll less, and use "
            "fewer macros. Until it is done it compiles nothing else; to stop it, restart the "
            "notebook's kernel."
        ) from None
    if error:
        raise error
    return result


# --- is it right? -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trial:
    """One launch: values before it by name, the result, what it should be, and how exactly."""

    values: SimpleNamespace
    result: np.ndarray
    right: np.ndarray
    bound: np.ndarray
    profile: Profile | None

    @property
    def wrong(self) -> np.ndarray:
        """Indices of the wrong elements, row by row."""
        return np.argwhere(~(abs(self.result - self.right) <= self.bound))  # NaN is wrong, too


@contextmanager
def _said(where: str) -> Iterator[None]:
    """Within it, a refusal or a fault begins with these words."""
    try:
        yield
    except (Refused, Fault) as error:
        raise Refused(f"{where}{error}", error.line) from None


def _try(problem: Problem, code: str, case: Case, rng=None, sanitize=False, mark=None) -> _Trial:
    """Launches a kernel on whole numbers that are always the same, or on those that `rng` gives.
    `sanitize`: counted and looked over; `mark`: what the result holds before, else NaN or, where
    there is a beta, a number."""
    known = np.random.default_rng(1)
    shapes, values = problem.arrays(case), {}
    for kind, star, name in problem.declared:
        if not star:
            values[name] = (np.float32 if kind == "float" else np.int32)(case[name])
        elif name == problem.result and not case.get("beta", 0):
            values[name] = ptx.empty(shapes[name], np.float32)
            if mark is not None:
                values[name][...] = mark
        else:
            drawn = rng.uniform(-1, 1, shapes[name]) if rng else known.integers(1, 9, shapes[name])
            values[name] = drawn.astype(np.float32)
    before = {name: np.array(value, np.float64) for name, value in values.items()}
    unread = () if rng else problem.unread(case)  # for random numbers goals count what is read
    values |= {name: ptx.empty(shapes[name], np.float32) for name in unread}
    launch = problem.function, problem.grid(case), problem.block, tuple(values.values())
    seen = None
    if sanitize:
        seen = profile(code, *launch, filename=FILENAME)
    else:
        text = nvrtc.compile_ptx(code, (), ARCH, FILENAME).text
        host.load(text, code, FILENAME).launch(*launch).run()
    for name, value in values.items():
        if name not in (problem.result, *unread) and not np.array_equal(before[name], value):
            raise Refused(f"{name} was written to; the result belongs into {problem.result}")
    exact = SimpleNamespace(**{n: v if v.ndim else float(v) for n, v in before.items()})
    sizes = SimpleNamespace(**{name: abs(value) for name, value in vars(exact).items()})
    bound = (math.sqrt(case.get("K", 1)) + 2) * EPS * problem.formula(sizes)
    return _Trial(exact, values[problem.result], problem.formula(exact), bound, seen)


def _unknown(trial: _Trial) -> None:
    """Refuses a kernel that was right on the known numbers and is wrong on random ones."""
    if len(trial.wrong):
        raise Refused(
            "right on the numbers that were tried first, wrong on others. Every try draws new "
            "ones, negative ones and fractions among them."
        )


def _known(problem: Problem, code: str, case: Case) -> None:
    """Refuses a kernel that is wrong on the known numbers: where, and what stands there."""
    trial = _try(problem, code, case)
    if not len(wrong := trial.wrong):
        return
    at = tuple(map(int, wrong[0]))
    place = f"{problem.result}[{', '.join(map(str, at))}]"
    are = "is" if len(wrong) == 1 else "are"
    count = f"{len(wrong)} of {trial.result.size} elements {are} wrong"
    if _unwritten(problem, code, case, trial, at):
        raise Refused(f"{count}; {place} was never written")
    holds = f"{place} is {trial.result[at]:.9g} and should be {trial.right[at]:.9g}"
    there = tuple(wrong.T)
    for slip, result in problem.slips(trial.values):
        if np.array_equal(trial.result[there], result[there]):
            raise Refused(f"{count}; {holds}: {slip}")
    for finding in _try(problem, code, case, sanitize=True).profile.findings:
        raise Refused(f"{finding.message}\nso {holds}; {count}", finding.line)
    raise Refused(f"{count}; {holds}")


def _unwritten(problem: Problem, code: str, case: Case, trial: _Trial, at: tuple) -> bool:
    """Whether a wrong element holds what it held before the launch."""
    if case.get("beta", 0):
        return trial.result[at] == vars(trial.values)[problem.result][at]
    return _try(problem, code, case, mark=_MARK).result[at] == _MARK


def _label(case: Case) -> str:
    """ "M×N×K = 33×65×97", "n = 257"; with alpha and beta where they are not 1 and 0."""
    sizes = {name: str(int(value)) for name, value in case.items() if name not in _SCALARS}
    label = f"{'×'.join(sizes)} = {'×'.join(sizes.values())}"
    scalars = [f"{n}={case[n]:g}" for n, plain in _SCALARS.items() if case.get(n, plain) != plain]
    empty = " (nothing to add up, yet the result must be written)" * (sizes.get("K") == "0")
    return " with ".join([label, *([", ".join(scalars)] if scalars else [])]) + empty


_SCALARS = {"alpha": 1, "beta": 0, "factor": 3}


# --- in words -----------------------------------------------------------------------------------


def _why(error: Exception, exercise: Exercise, code: object) -> str:
    """A refusal for the reader: what was wrong, the line of the text, the way out."""
    why = str(error)
    match error:
        case Refused() | Fault() | PtxError() | nvrtc.CompileError() | nvrtc.NvrtcMissing():
            pass
        case TypeError() if f"{exercise.problem.function}" in why:
            why = why.partition(", whose bytes")[0]
            why += f"\nthe exercise passes {exercise.problem.parameters}"
        case ValueError() if f"{exercise.problem.function}" in why:
            pass
        case RecursionError():
            why = "an address hangs on a chain of hundreds of instructions, too long to follow here"
        case _:
            why = f"judge itself stumbled over this kernel ({type(error).__name__}: {why})"
    quoted = _quoted(exercise, code, getattr(error, "line", 0))
    first, *more = why.replace(f" (options: -arch={ARCH})", "").split("\n")
    why = _by_given("\n".join([first, *quoted, *more]), code)
    advice = [words for key, words in _ADVICE if key in why]
    lines = [*why.splitlines(), *advice[:1]]
    shown = [_clipped(line) for line in lines if line.strip()]
    more = [f"… and {len(shown) - _LINES} lines more"] if len(shown) > _LINES else []
    return "\n".join([*shown[:_LINES], *more])


def _clipped(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…"


def _quoted(exercise: Exercise, code: object, line: int) -> list[str]:
    """The line that is to blame, as it stands in the reader's text or in what is given."""
    if not isinstance(code, str) or not line:
        return []
    text = f"{code}\n{exercise.rest}".split("\n")
    return [f"{line} | {text[line - 1].strip()}"] if line <= len(text) else []


def _by_given(why: str, code: object) -> str:
    """Lines behind the reader's text are named by their numbers in given.cu, as it is shown."""
    before = code.count("\n") + 1 if isinstance(code, str) else 0
    for pattern, form in _NAMED:

        def renamed(found: re.Match, form=form) -> str:
            number = int(found["n"]) - before
            return form.format(**found.groupdict() | {"n": number}) if number > 0 else found[0]

        why = re.sub(pattern, renamed, why, flags=re.MULTILINE)
    return why
