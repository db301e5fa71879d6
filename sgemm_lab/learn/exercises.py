"""The exercises: a reader's kernel is compiled, checked and counted, on any machine.

`judge("01.1", code)` says what is right, what is not, and where. A chapter holds the skeleton and
the folded solution; what an exercise asks for stands here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgemm_lab.ladder import Step, own
from sgemm_lab.run.backend import ptx
from sgemm_lab.run.check import check, default_shapes
from sgemm_lab.run.nvrtc import CompileError
from sgemm_lab.run.profile import Profile, accesses, profile, profile_variant
from sgemm_lab.simt.counters import Counters
from sgemm_lab.simt.machine import Fault
from sgemm_lab.simt.ptx import PtxError


@dataclass(frozen=True)
class Exercise:
    """What is asked: `launched` and `parameters` say how the kernel is called; `correct` finds what
    is wrong with it, in a sentence, or None; `examine` runs it on some sizes, counted and looked
    over for races; `goal` says what is missing in the last one's counters, or None. `rest` is what
    stands behind the reader's text where that is only a part of the kernel."""

    name: str
    asks: str
    launched: str
    parameters: str
    correct: Callable[[str], str | None]
    examine: Callable[[str], list[Profile]]
    goal: Callable[[Counters], str | None] = lambda counters: None
    rest: str = ""


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
    exercise = _exercise(name)
    solved, said = _judged(exercise, code)
    return Verdict(name, solved, (f"launched in {exercise.launched}", *said))


def given(name: str) -> Step:
    """What stands behind the reader's text in exercise `name`, for source.show."""
    return Step(-1, "given", "What is given", "", "tiled", text=_exercise(name).rest)


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str) or name not in EXERCISES:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]


def _judged(exercise: Exercise, code: str) -> tuple[bool, list[str]]:
    """Whether the exercise is solved, and what is to be said about it, line by line."""
    if not isinstance(code, str):
        return False, [f"a kernel is a text in CUDA C++; this is {code!r} ({type(code).__name__})"]
    code = f"{code}\n{exercise.rest}"
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


# --- a kernel over the rows of a matrix ---------------------------------------------------------


def _scale_rows(code: str, rows: int, cols: int, sanitize: bool = False) -> tuple:
    """(x, y, Profile) of y = 3 x on a row-major matrix, four neighbours of a row to a thread."""
    x = np.random.default_rng(rows * cols).standard_normal((rows, cols)).astype(np.float32)
    y = np.full((rows, cols), np.nan, np.float32)
    grid = (-(-cols // 128), -(-rows // 8))
    args = np.int32(rows), np.int32(cols), np.float32(3), x.copy(), y
    seen = profile(code, "scale", grid, (32, 8), args, sanitize=sanitize)
    return x, y, seen


def _scale_rows_correct(code: str) -> str | None:
    for rows, cols in ((8, 128), (9, 127), (1, 1), (5, 4), (3, 130), (20, 261)):
        x, y, _ = _scale_rows(code, rows, cols)
        wrong = np.argwhere(y != np.float32(3) * x)
        if len(wrong):
            r, c = map(int, wrong[0])
            right = np.float32(3) * x[r, c]
            return f"{rows}×{cols}: y[{r}, {c}] is {y[r, c]} and should be {right}"
    return None


_WIDE = (64, 256)  # rows and columns of what is counted; 16 divides the address of every row


def _vectorised(counters: Counters) -> str | None:
    requests = counters.global_load_requests, counters.global_store_requests
    fewest = _WIDE[0] * _WIDE[1] // 128
    if max(requests) <= fewest:
        return None
    size = "{}×{}".format(*_WIDE)
    return (
        f"at {size} it makes {requests[0]} requests to load and {requests[1]} to store; the goal "
        f"is {fewest} each, 128 bits a lane"
    )


# --- a matrix product ---------------------------------------------------------------------------


def _product(function: str, block, tile):
    """What an exercise needs besides its name, what it asks and its goal, if the kernel has the
    interface of the ladder."""
    launched = "blocks of {}×{} threads, one for each {}×{} tile of C".format(*block, *tile)
    parameters = (
        "(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)"
    )

    def correct(code: str) -> str | None:
        # On the PTX machine in any case: a wild address would end a GPU's use for this process.
        variant = own(code, function, block, tile)
        shapes = default_shapes(variant)[:-1]  # but the one with a long K, which tells TF32
        found = check(variant, shapes, on=ptx)
        return None if found.ok else "\n".join(found.failures[:2])

    def examine(code: str) -> list[Profile]:
        variant = own(code, function, block, tile)
        return [profile_variant(variant, *size) for size in ((37, 45, 35), (_SIZE,) * 3)]

    return launched, parameters, correct, examine


_SIZE = 128  # M = N = K of what is counted


def _coalesced(counters: Counters) -> str | None:
    reached = counters.sectors_per_load
    if reached <= 2.5:
        return None
    return f"a global load touches {reached:.1f} sectors on average; the goal is 2.5"


def _in_register(counters: Counters) -> str | None:
    elements = _SIZE**2
    stored = counters.global_store_requests * 32
    if stored <= elements:
        return None
    return f"at {_SIZE}³ it stores each element of C {stored // elements} times; the goal is once"


def _tiled(counters: Counters) -> str | None:
    fewest = 2 * _SIZE**3 // 16 // 8  # A and B, each fetched once per 16 rows, columns of C
    if counters.global_load_sectors <= 2 * fewest:
        return None
    return (
        f"at {_SIZE}³ it loads {counters.global_load_sectors:,} sectors from global memory; the "
        f"goal is {2 * fewest:,}: load each tile once, and share it"
    )


def _without_conflicts(counters: Counters) -> str | None:
    loads, stores = counters.shared_load_conflicts, counters.shared_store_conflicts
    if not loads + stores:
        return None
    return (
        f"at {_SIZE}³ its shared loads meet {loads:,} bank conflicts and its stores {stores:,}; "
        "the goal is none"
    )


def _shared_loads(wavefronts: float, loads: float = 1.0) -> Callable[[Counters], str | None]:
    """The goal of at most so many wavefronts, and so many loads, for a multiply-add of a warp."""

    def goal(counters: Counters) -> str | None:
        ffma = counters.ffma / 32
        needs = counters.shared_load_wavefronts / ffma, counters.shared_load_instructions / ffma
        if needs[0] <= wavefronts and needs[1] <= loads:
            return None
        return (
            f"a multiply-add costs {needs[0]:.2f} wavefronts and {needs[1]:.2f} loads of shared "
            f"memory; the goal is {wavefronts:.2f}" + f" and {loads:.2f}" * (loads < 1)
        )

    return goal


def _thread_tile(threads: int, BM: int, BN: int) -> str:
    """A tiled kernel for a block of so many threads and tiles of BM×8 and 8×BN, without the part
    that says which elements of C a thread computes: TM, TN, row_of, col_of."""
    return (
        f"enum {{ BM = {BM}, BN = {BN}, BK = 8, THREADS = {threads} }};\n"
        + r"""
__device__ float at(const float* X, int rows, int cols, int r, int c) {
    return r < rows && c < cols ? X[(size_t)r * cols + c] : 0.0f;
}

extern "C" __global__ void tiled(int M, int N, int K, float alpha, const float* A,
                                 const float* B, float beta, float* C) {
    __shared__ alignas(16) float As[BK][BM + 4], Bs[BK][BN];
    int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN, thread = threadIdx.x;
    float sums[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = thread; i < BM * BK; i += THREADS)
            As[i % BK][i / BK] = at(A, M, K, row0 + i / BK, k0 + i % BK);
        for (int i = thread; i < BK * BN; i += THREADS)
            Bs[i / BN][i % BN] = at(B, K, N, k0 + i / BN, col0 + i % BN);
        __syncthreads();
        for (int k = 0; k < BK; ++k)
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n)
                    sums[m][n] += As[k][row_of(thread, m)] * Bs[k][col_of(thread, n)];
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m)
        for (int n = 0; n < TN; ++n) {
            int r = row0 + row_of(thread, m), c = col0 + col_of(thread, n);
            float old = beta == 0.0f ? 0.0f : beta * at(C, M, N, r, c);
            if (r < M && c < N) C[(size_t)r * N + c] = alpha * sums[m][n] + old;
        }
}
"""
    )


_DEEP = 16  # TILE and BK of the exercises below


def _fetched_early(function: str, launched: str, parameters: str, correct, examine):
    """A product whose next tiles must be on their way before the arithmetic on these begins."""

    def early(code: str) -> str | None:
        if problem := correct(code):
            return problem
        variant = own(code, function, (_DEEP,) * 2, (_DEEP,) * 3)
        seen = [(each.space, each.kind) for each in accesses(variant, _DEEP, _DEEP, 3 * _DEEP)]
        if ("shared", "load") not in seen:
            return "the result is right\nno tile is kept in shared memory"
        before = seen[: seen.index(("shared", "load"))].count(("global", "load"))
        if 3 * before >= 2 * (loads := seen.count(("global", "load"))):
            return None
        return (
            f"the result is right\nof {loads} global loads for three tiles, {before} set out "
            f"before the arithmetic on the first; the goal is {2 * loads // 3}, those of two tiles"
        )

    return launched, parameters, early, examine


def _one_barrier(counters: Counters) -> str | None:
    warps, tiles = (_SIZE // _DEEP) ** 2 * _DEEP**2 // 32, _SIZE // _DEEP
    if counters.barriers <= warps * (tiles + 1):
        return None
    return (
        f"at {_SIZE}³ a warp waits at {counters.barriers // warps} barriers for {tiles} tiles; the "
        f"goal is {tiles + 1}"
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
    Exercise(
        "03.1",
        "each element of C is stored once",
        *_product("naive", (32, 8), (8, 32, 1)),
        _in_register,
    ),
    Exercise(
        "04.1",
        "no bank conflict, neither in a load nor in a store",
        *_product("tiled", (16, 16), (16, 16, 16)),
        _without_conflicts,
    ),
    Exercise(
        "05.1",
        "two outputs a thread, with at most one wavefront of shared loads for each multiply-add",
        *_product("coarse", (32, 16), (32, 32, 32)),
        _shared_loads(1.0),
    ),
    Exercise(
        "06.1",
        "any size, and 128 bits a lane where 16 divides the address of every row",
        "blocks of 32×8 threads, one for each 8 rows and 128 columns",
        "(int rows, int cols, float factor, const float* x, float* y)",
        _scale_rows_correct,
        lambda code: [_scale_rows(code, *size, sanitize=True)[2] for size in ((9, 127), _WIDE)],
        _vectorised,
    ),
    Exercise(
        "07.1",
        "a multiply-add costs at most 0.40 wavefronts of shared memory",
        *_product("tiled", (64, 1), (32, 32, 8)),
        _shared_loads(0.4),
        _thread_tile(64, 32, 32),
    ),
    Exercise(
        "08.1",
        "a multiply-add costs at most 0.35 wavefronts and 0.10 loads of shared memory",
        *_product("tiled", (64, 1), (32, 64, 8)),
        _shared_loads(0.35, 0.1),
        _thread_tile(64, 32, 64),
    ),
    Exercise(
        "09.1",
        "a multiply-add costs at most 0.25 wavefronts of shared memory",
        *_product("tiled", (32, 1), (8, 64, 8)),
        _shared_loads(0.25),
        _thread_tile(32, 8, 64),
    ),
    Exercise(
        "10.1",
        "the loads of the next tile set out before the arithmetic on this one",
        *_fetched_early("tiled", *_product("tiled", (_DEEP,) * 2, (_DEEP,) * 3)),
    ),
    Exercise(
        "11.1",
        "one barrier a tile, and no race",
        *_product("tiled", (_DEEP,) * 2, (_DEEP,) * 3),
        _one_barrier,
    ),
)
EXERCISES = {exercise.name: exercise for exercise in _EXERCISES}
