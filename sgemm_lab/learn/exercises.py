"""The exercises: a reader's kernel is compiled, checked and counted, on any machine.

`judge("01.1", code)` says what is right, what is not, and where. A chapter holds the skeleton and
the folded solution; what an exercise asks for stands here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgemm_lab.ladder import Step, Variant
from sgemm_lab.run.backend import ptx
from sgemm_lab.run.check import check
from sgemm_lab.run.nvrtc import CompileError
from sgemm_lab.run.profile import Profile, profile, profile_variant
from sgemm_lab.simt.counters import Counters
from sgemm_lab.simt.machine import Fault
from sgemm_lab.simt.ptx import PtxError


@dataclass(frozen=True)
class Exercise:
    """What is asked: `launched` and `parameters` say how the kernel is called; `correct` finds what
    is wrong with it, in a sentence, or None; `examine` runs it on some sizes, counted and looked
    over for races; `goal` says what is missing in the last one's counters, or None."""

    name: str
    asks: str
    launched: str
    parameters: str
    correct: Callable[[str], str | None]
    examine: Callable[[str], list[Profile]]
    goal: Callable[[Counters], str | None] = lambda counters: None


@dataclass(frozen=True)
class Verdict:
    """What `judge` found. `.solved` is True when the kernel is right and its goal is met."""

    name: str
    solved: bool
    lines: tuple[str, ...]

    def __repr__(self) -> str:
        head = f"Exercise {self.name}: {'solved' if self.solved else 'not yet'}"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])


def judge(name: str, code: str) -> Verdict:
    """Compile, check and count a reader's kernel for exercise `name`. Never raises for bad code."""
    if not isinstance(name, str) or name not in EXERCISES:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    exercise = EXERCISES[name]
    solved, said = _judged(exercise, code)
    return Verdict(name, solved, (f"launched in {exercise.launched}", *said))


def _judged(exercise: Exercise, code: str) -> tuple[bool, list[str]]:
    """Whether the exercise is solved, and what is to be said about it, line by line."""
    if not isinstance(code, str):
        return False, [f"a kernel is a text in CUDA C++; this is {code!r} ({type(code).__name__})"]
    try:
        if problem := exercise.correct(code):
            return False, problem.splitlines()
        profiles = exercise.examine(code)
    except TypeError as error:
        why = str(error).partition(", whose bytes")[0]
        return False, [
            f"the declaration differs from what the exercise passes: {exercise.parameters}",
            why,
        ]
    except (CompileError, PtxError, Fault, ValueError) as error:
        return False, str(error).splitlines()
    right = "the result is right"
    if found := next((found for each in profiles for found in each.findings or ()), None):
        return False, [f"{right}, but by luck: {found.kind}", *found.message.splitlines()]
    if missing := exercise.goal(profiles[-1].counters):
        return False, [right, missing]
    return True, [right, exercise.asks]


# --- a kernel over one vector -------------------------------------------------------------------

_BLOCK = 256


def _scale(code: str, n: int, sanitize: bool = False) -> tuple[np.ndarray, np.ndarray, Profile]:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    y = np.full(n, np.nan, np.float32)
    grid = (-(-n // _BLOCK),)
    args = np.int32(n), np.float32(3), x.copy(), y
    seen = profile(code, "scale", grid, (_BLOCK,), args, sanitize=sanitize)
    if not np.array_equal(args[2], x):
        raise ValueError(f"n = {n}: x was written to; the result belongs into y")
    return x, y, seen


def _scale_correct(code: str) -> str | None:
    for n in (256, 1, 255, 257, 1000):
        x, y, _ = _scale(code, n)
        wrong = np.flatnonzero(y != np.float32(3) * x)
        if len(wrong):
            first = wrong[0]
            return f"n = {n}: y[{first}] is {y[first]} and should be {np.float32(3) * x[first]}"
    return None


# --- a matrix product ---------------------------------------------------------------------------


def _variant(
    function: str, code: str, block: tuple[int, int], tile: tuple[int, int, int]
) -> Variant:
    step = Step(
        -1, "your kernel", "yours", "", function, (), lambda m: block, lambda m: tile, text=code
    )
    return step()


def _product(function: str, block, tile):
    """What an exercise needs besides its name, what it asks and its goal, if the kernel has the
    interface of the ladder."""
    launched = "blocks of {}×{} threads, one for each {}×{} tile of C".format(*block, *tile)
    parameters = (
        "(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)"
    )

    def correct(code: str) -> str | None:
        # On the PTX machine in any case: a wild address would end a GPU's use for this process.
        found = check(_variant(function, code, block, tile), on=ptx)
        return None if found.ok else "\n".join(found.failures[:2])

    def examine(code: str) -> list[Profile]:
        variant = _variant(function, code, block, tile)
        return [profile_variant(variant, *size) for size in ((37, 45, 35), (_SIZE,) * 3)]

    return launched, parameters, correct, examine


_SIZE = 128  # M = N = K of what is counted


def _coalesced(counters: Counters) -> str | None:
    reached = counters.sectors_per_load
    if reached <= 2.5:
        return None
    return f"a global load touches {reached:.1f} sectors on average; the goal is 2.5"


def _tiled(counters: Counters) -> str | None:
    fewest = 2 * _SIZE**3 // 16 // 8  # A and B, each fetched once per 16 rows, columns of C
    if counters.global_load_sectors <= 2 * fewest:
        return None
    return (
        f"at {_SIZE}³ it loads {counters.global_load_sectors:,} sectors from global memory; the "
        f"goal is {2 * fewest:,}: load each tile once, and share it"
    )


_EXERCISES = (
    Exercise(
        "00.1",
        "no thread leaves its array, for any n",
        f"blocks of {_BLOCK} threads, as many as cover n",
        "(int n, float factor, const float* x, float* y)",
        _scale_correct,
        lambda code: [_scale(code, 1000, sanitize=True)[2]],
    ),
    Exercise(
        "01.1",
        "a global load touches at most 2.5 sectors on average",
        *_product("naive", (32, 8), (8, 32, 1)),
        _coalesced,
    ),
    Exercise(
        "02.1",
        "any M, N and K, with every thread at every barrier, and at most twice the sectors of "
        "perfect 16×16 tiles",
        *_product("tiled", (16, 16), (16, 16, 16)),
        _tiled,
    ),
)
EXERCISES = {exercise.name: exercise for exercise in _EXERCISES}
