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
from sgemm_lab.run.profile import profile, profile_variant
from sgemm_lab.simt.counters import Counters
from sgemm_lab.simt.machine import Fault
from sgemm_lab.simt.ptx import PtxError


@dataclass(frozen=True)
class Exercise:
    """What is asked: `correct` finds what is wrong with a kernel, in a sentence, or None;
    `count` runs it once and counts; `goal` says what is missing in the counters, or None."""

    name: str
    asks: str
    correct: Callable[[str], str | None]
    count: Callable[[str], Counters]
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
    if name not in EXERCISES:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    exercise = EXERCISES[name]
    try:
        problem = exercise.correct(code)
        missing = None if problem else exercise.goal(exercise.count(code))
    except (CompileError, PtxError, Fault, TypeError, ValueError) as error:
        return Verdict(name, False, tuple(str(error).splitlines()))
    if problem:
        return Verdict(name, False, tuple(problem.splitlines()))
    if missing:
        return Verdict(name, False, ("the result is right", missing))
    return Verdict(name, True, ("the result is right", exercise.asks))


# --- a kernel over one vector -------------------------------------------------------------------

_BLOCK = 256


def _scale(code: str, n: int) -> tuple[np.ndarray, np.ndarray, Counters]:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    y = np.full(n, np.nan, np.float32)
    grid = (-(-n // _BLOCK),)
    args = np.int32(n), np.float32(3), x, y
    counted = profile(code, "scale", grid, (_BLOCK,), args, sanitize=False)
    return x, y, counted.counters


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
    """(correct, count) of an exercise whose kernel has the interface of the ladder."""

    def correct(code: str) -> str | None:
        # On the PTX machine in any case: a wild address would end a GPU's use for this process.
        found = check(_variant(function, code, block, tile), on=ptx)
        return None if found.ok else "\n".join(found.failures[:2])

    def count(code: str, n: int = 128) -> Counters:
        return profile_variant(_variant(function, code, block, tile), n, n, n).counters

    return correct, count


def _coalesced(counters: Counters) -> str | None:
    reached = counters.sectors_per_load
    if reached <= 2.5:
        return None
    return f"a global load touches {reached:.1f} sectors on average; the goal is 2.5"


_EXERCISES = (
    Exercise(
        "00.1",
        "no thread leaves its array, for any n",
        _scale_correct,
        lambda code: _scale(code, 1000)[2],
    ),
    Exercise(
        "01.1",
        "a global load touches at most 2.5 sectors on average",
        *_product("naive", (32, 8), (8, 32, 1)),
        _coalesced,
    ),
    Exercise(
        "02.1",
        "any M, N and K, with every thread at every barrier",
        *_product("tiled", (16, 16), (16, 16, 16)),
    ),
)
EXERCISES = {exercise.name: exercise for exercise in _EXERCISES}
