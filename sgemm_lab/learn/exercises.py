"""The exercises: what each asks for, its goals and its hints, and `judge`, which says how far a
reader's kernel is.

The skeletons and the folded solutions stand in the chapters; judge.py does the judging.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable
from html import escape
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from sgemm_lab.ladder import Step, own
from sgemm_lab.learn.judge import (
    MEDALS_STYLE,
    Case,
    Exercise,
    Goal,
    Problem,
    Seen,
    Verdict,
    judged,
)
from sgemm_lab.learn.timing import timed
from sgemm_lab.run.backend import gpu_available
from sgemm_lab.run.check import default_shapes
from sgemm_lab.run.profile import accesses
from sgemm_lab.show.bundle import STYLE, Bundle


def judge(name: str, code: str) -> Verdict:
    """Compile, check and count a reader's kernel for exercise `name`: bronze, silver or gold.

    Never raises for bad code. The PTX machine judges, also where there is a GPU; a kernel of the
    ladder's interface that gets gold is then timed there. KeyError for an unknown exercise.
    """
    exercise = _exercise(name)
    if isinstance(code, str):  # a whole cell may have been pasted
        code = re.sub(r"\A\s*%%kernel.*", "", code)
    verdict = judged(exercise, code)
    if not (verdict.solved and exercise.problem.tile and gpu_available()):
        return verdict
    return timed(verdict, exercise, code)


def exercise(name: str) -> Bundle:
    """What exercise `name` asks for, medal by medal, and its hints, each folded."""
    asked = _exercise(name)
    head = f"Exercise {name}: {asked.title}; {asked.launched}"
    rows = "".join(f"<dt>{medal}</dt><dd>{escape(what)}</dd>" for medal, what in asked.asks)
    hints = "".join(
        f"<details><summary>Hint {number}</summary><p>{_marked_up(text)}</p></details>"
        for number, text in enumerate(asked.hints, 1)
    )
    html = (
        f'<figure class="lab">{STYLE}{MEDALS_STYLE}<figcaption>{escape(head)}</figcaption>'
        f"<dl>{rows}</dl>{hints}</figure>"
    )
    calls = ", ".join(f'hint("{name}", {number})' for number in range(1, len(asked.hints) + 1))
    lines = [head, *(f"  {medal:6}  {what}" for medal, what in asked.asks), f"Hints: {calls}"]
    return Bundle(html, "\n".join(lines))


def hint(name: str, number: int = 1) -> Bundle:
    """Hint `number` of exercise `name`, from 1, each plainer than the one before."""
    hints = _exercise(name).hints
    if number not in range(1, len(hints) + 1):
        raise ValueError(f"exercise {name} has hints 1 to {len(hints)}; there is none {number!r}")
    text = hints[number - 1]
    left = len(hints) - number
    more = f"{left} more" if left else "the last"
    plain = f"Hint {number} of {name} ({more}): {text.replace('`', '')}"
    html = f'<figure class="lab">{STYLE}{MEDALS_STYLE}<p>{_marked_up(text)}</p></figure>'
    return Bundle(html, plain)


def given(name: str) -> Step:
    """What stands behind the reader's text in exercise `name`, for source.show."""
    return Step(-1, "given", "What is given", "", "tiled", text=_exercise(name).rest)


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab judge 05.1 my.cu`: exit code 0 for gold, 1 for less, 2 if misasked."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab judge", description="Judge a kernel as the cells of the book do."
    )
    parser.add_argument("exercise", choices=EXERCISES, metavar="exercise", help="05.1, E.2, …")
    parser.add_argument("file", type=Path, help="the text that %%%%kernel would be given")
    given = parser.parse_args(argv)
    try:
        code = given.file.read_text("utf-8")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    verdict = judge(given.exercise, code)
    print(verdict)
    return 0 if verdict.solved else 1


def _marked_up(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str) or name not in EXERCISES:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]


# --- the problems: what is computed, and in which cases it must be right ------------------------

_SIZE = 128  # M = N = K of what is counted, where a problem names no other


def _vector() -> Problem:
    cases = tuple({"n": n, "factor": 3} for n in (256, 1, 255, 257, 1000))
    return Problem(
        "scale",
        "(int n, float factor, const float* x, float* y)",
        "blocks of 256 threads, as many as cover n",
        (256, 1),
        lambda case: (-(-case["n"] // 256),),
        lambda case: {"x": (case["n"],), "y": (case["n"],)},
        lambda v: v.factor * v.x,
        cases,
        (),
        cases[-1:],
        lambda v: [("x itself", v.x)],
    )


_WIDE = (64, 256)  # rows and columns; 16 divides the address of every row


def _rows() -> Problem:
    sizes = (8, 128), (9, 127), (1, 1), (5, 4), (3, 130), (20, 261)
    cases = tuple({"rows": rows, "cols": cols, "factor": 3} for rows, cols in sizes)
    return Problem(
        "scale",
        "(int rows, int cols, float factor, const float* x, float* y)",
        "blocks of 32×8 threads, one for each 8 rows and 128 columns",
        (32, 8),
        lambda case: (-(-case["cols"] // 128), -(-case["rows"] // 8)),
        lambda case: dict.fromkeys("xy", (case["rows"], case["cols"])),
        lambda v: v.factor * v.x,
        cases,
        cases[1:2],
        ({"rows": _WIDE[0], "cols": _WIDE[1], "factor": 3},),
        lambda v: [("x itself", v.x)],
    )


def _transposition() -> Problem:
    sizes = (32, 64), (1, 1), (33, 31), (5, 70), (64, 33), (65, 97)
    cases = tuple({"rows": rows, "cols": cols} for rows, cols in sizes)
    return Problem(
        "transpose",
        "(int rows, int cols, const float* x, float* y)",
        "blocks of 32×8 threads, one for each 32×32 tile of x",
        (32, 8),
        lambda case: (-(-case["cols"] // 32), -(-case["rows"] // 32)),
        lambda case: {"x": (case["rows"], case["cols"]), "y": (case["cols"], case["rows"])},
        lambda v: v.x.T,
        cases,
        cases[-1:],
        ({"rows": _SIZE, "cols": _SIZE},),
    )


def _matrix_vector() -> Problem:
    sizes = (8, 64), (1, 1), (7, 33), (9, 31), (20, 100), (3, 0), (17, 300)
    shapes = [{"M": M, "K": K, "alpha": 1, "beta": 0} for M, K in sizes]
    scaled = [shapes[4] | {"alpha": a, "beta": b} for a, b in ((2, 0), (-1, 2), (0, 3))]
    return Problem(
        "gemv",
        "(int M, int K, float alpha, const float* A, const float* x, float beta, float* y)",
        "blocks of 32×8 threads, one for each 8 rows of A",
        (32, 8),
        lambda case: (-(-case["M"] // 8),),
        lambda case: {"A": (case["M"], case["K"]), "x": (case["K"],), "y": (case["M"],)},
        lambda v: v.alpha * (v.A @ v.x) + (v.beta * v.y if v.beta else 0),
        (*shapes, *scaled),
        (shapes[4], shapes[3]),
        ({"M": 64, "K": 256, "alpha": 1, "beta": 0},),
        lambda v: chain(_sums(v, v.A, v.x, v.y), _unsummed(v)),
    )


def _product(
    function: str,
    block: tuple[int, int],
    tile: tuple[int, int, int],
    counted: tuple[Case, ...] = (),
    transposed: bool = False,
    strict: bool = False,
) -> Problem:
    """C = αAB + βC with the ladder's interface. `transposed`: B is N×K, and αABᵀ + βC is asked;
    `strict`: where alpha is 0, A and B must not be read."""
    odd = default_shapes(own("", function, block, tile))[:-1]  # the last has a long K
    full = odd[4]
    shapes = [full, *(shape for shape in odd if 0 not in shape[:2] and shape != full)]
    first = [_scaled(shape, 1, 0) for shape in shapes]
    ragged = (tile[0] * 2 + 5, tile[1] + 13, 35) if tile[1] < 40 else (37, 45, 35)
    others = [_scaled(ragged, *scalars) for scalars in ((1, 1), (2, 0), (-1, 2), (0, 3), (3, -2))]

    def b(v: SimpleNamespace) -> np.ndarray:
        return v.B.T if transposed else v.B

    return Problem(
        function,
        "(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)",
        "blocks of {}×{} threads, one for each {}×{} tile of C".format(*block, *tile),
        block,
        lambda case: (-(-case["N"] // tile[1]), -(-case["M"] // tile[0])),
        lambda case: {
            "A": (case["M"], case["K"]),
            "B": (case["N"], case["K"]) if transposed else (case["K"], case["N"]),
            "C": (case["M"], case["N"]),
        },
        lambda v: v.alpha * (v.A @ b(v)) + (v.beta * v.C if v.beta else 0),
        (*first, *others),
        (_scaled((37, 45, 35), 1, 0),),
        counted or (_scaled((_SIZE,) * 3, 1, 0),),
        lambda v: chain(_sums(v, v.A, b(v), v.C), _misread(v, b, tile)),
        None if transposed else tile,
        lambda case: "AB" if strict and not case["alpha"] else "",
    )


def _scaled(shape: tuple[int, int, int], alpha: float, beta: float) -> Case:
    return dict(zip("MNK", shape, strict=True)) | {"alpha": alpha, "beta": beta}


def _sums(v, A, B, C) -> Iterable[tuple[str, np.ndarray]]:
    """What a product may have become by a slip in the sum or the scalars."""
    product, rest, K = A @ B, v.beta * C if v.beta else 0, A.shape[1]
    yield "alpha is left out", product + rest
    yield "beta times what was there is left out", v.alpha * product
    yield "what was there is added without beta", v.alpha * product + C
    yield "alpha multiplies what was there, too", v.alpha * (product + rest)
    yield "the sum is counted twice", 2 * v.alpha * product + rest
    yield "the sum is missing", 0 * product + rest
    for k in range(1, K):
        first, last = (f"the {end}{f' {k}' * (k > 1)}" for end in ("first", "last"))
        begun, more = A[:, :k] @ B[:k], A[:, : K - k] @ B[: K - k]
        yield f"of {K} products, only {first}", v.alpha * begun + rest
        yield f"of {K} products, all but {first}", v.alpha * (product - begun) + rest
        yield f"of {K} products, {first} twice and not {last}", v.alpha * (begun + more) + rest


def _misread(v, b: Callable, tile: tuple[int, int, int]) -> Iterable[tuple[str, np.ndarray]]:
    """What a product may have become if A or B was read by a wrong index."""
    T, rest = tile[-1], v.beta * v.C if v.beta else 0
    sizes = dict(zip("MNK", (*v.C.shape, v.A.shape[1]), strict=True))
    for name, X in (("A", v.A), ("B", v.B)):
        (rows, columns), (r, c) = X.shape, np.indices(X.shape)
        ways = {f"{name} were stored column by column": c * rows + r}
        ways |= {f"the rows of {name} had {n} elements": r * L + c for n, L in sizes.items()}
        if T > 1 and not rows % T and not columns % T:
            turned = (r // T * T + c % T) * columns + c // T * T + r % T
            ways[f"each {T}×{T} tile of {name} were transposed"] = turned
        for way, index in ways.items():
            if index.max(initial=0) < X.size:  # else it would have left the array
                read = SimpleNamespace(**vars(v) | {name: X.reshape(-1)[index]})
                yield f"as if {way}", v.alpha * (read.A @ b(read)) + rest


def _unsummed(v) -> Iterable[tuple[str, np.ndarray]]:
    """What a matrix times a vector may have become if a warp adds up too few of its lanes."""
    K, rest = len(v.x), v.beta * v.y if v.beta else 0
    share = -(-K // 32)
    for lanes in (1, 2, 4, 8, 16):
        for lane in (np.arange(K) % 32, np.arange(K) // max(share, 1)):
            some = np.where(lane < lanes, v.x, 0)
            yield f"the sums of the first {lanes} lanes only", v.alpha * (v.A @ some) + rest


# --- what goals count ---------------------------------------------------------------------------


def _a_multiply_add(what: str, counter: str) -> Callable[..., Goal]:
    """(most, *marks) → the goal of so many of a counter for each multiply-add of a warp; they are
    infinite where there is none."""

    def of(seen: Seen) -> float:
        count, ffma = getattr(seen.counters, counter), seen.counters.ffma / 32
        return count / ffma if ffma else math.inf

    label = f"{what} for a multiply-add of a warp"
    return lambda most, *marks: Goal(label, of, most, ".3g", marks)


_wavefronts = _a_multiply_add("wavefronts of shared loads", "shared_load_wavefronts")
_loads = _a_multiply_add("shared loads", "shared_load_instructions")
_fetches = _a_multiply_add("global load requests", "global_load_requests")


def _sectors(most: float, kind: str = "load") -> Goal:
    def of(seen: Seen) -> float:
        sectors, requests = (
            getattr(seen.counters, f"global_{kind}_{unit}") for unit in ("sectors", "requests")
        )
        return sectors / max(requests, 1)

    return Goal(f"sectors a global {kind} touches", of, most, ".1f", kind=f"global_{kind}")


def _count(what: str, counter: str, most: int, launch: int = 0, kind: str = "") -> Goal:
    def of(seen: Seen) -> int:
        return getattr(seen.profiles[launch].counters, counter)

    return Goal(what, of, most, kind=kind)


_NO_CONFLICT = tuple(
    _count(f"bank conflicts of shared {each}s", f"shared_{each}_conflicts", 0, 0, f"shared_{each}")
    for each in ("load", "store")
)


def _late(function: str, tile: int) -> Callable[[Seen], float]:
    """The global loads of the first warp for three tiles that come after its arithmetic on the
    first; all of them where no tile is kept in shared memory."""

    def late(seen: Seen) -> float:
        variant = own(seen.code, function, (tile,) * 2, (tile,) * 3)
        order = [(each.space, each.kind) for each in accesses(variant, tile, tile, 3 * tile)]
        start = order.index(("shared", "load")) if ("shared", "load") in order else 0
        return order[start:].count(("global", "load"))

    return late


def _barriers(tiles: int, warps: int, most: int) -> Goal:
    return Goal(f"barriers at which a warp waits for {tiles} tiles",
                lambda seen: seen.counters.barriers / warps, most)  # fmt: skip


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


# --- the exercises ------------------------------------------------------------------------------

_NAIVE = "naive", (32, 8), (8, 32, 1)
_TILED = "tiled", (16, 16), (16, 16, 16)
_FEWEST = 2 * _SIZE**3 // 16 // 8  # sectors of A and B, each fetched once per 16 rows, columns of C

_SMALL = (_scaled((64, 64, 64), 1, 0),)  # shows the same for a multiply-add, and is done sooner

_EXERCISES = (
    Exercise(
        "00.1",
        "a guard",
        _vector(),
        (_count("sectors loaded for 1000 elements", "global_load_sectors", 125),),
        (
            "How many threads are there for n = 257, and which of them have no element?",
            "Those whose `i` is not below `n` must neither read `x` nor write `y`.",
        ),
    ),
    Exercise(
        "01.1",
        "rows, columns and lanes",
        _product(*_NAIVE),
        (_sectors(2.5),),
        (
            "The grid counts 8 rows along `y` and 32 columns along `x`. Which of `threadIdx.x` and "
            "`threadIdx.y` runs from 0 to 7?",
            "The lanes of a warp have the same `threadIdx.y`. They should share a row of C, so "
            "that they read neighbours in B.",
            "Rows come from `y`, both of the block and of the thread; columns from `x`.",
        ),
        step=1,
    ),
    Exercise(
        "02.1",
        "tiles for any shape",
        _product(*_TILED),
        (
            _count(
                f"sectors loaded at 128×128×128, where perfect tiles need {_FEWEST:,}",
                "global_load_sectors",
                2 * _FEWEST,
            ),
        ),
        (
            "Three accesses may lie outside of a matrix: two loads and a store. Each needs a guard "
            "of its own.",
            "What must stand in `As` where A has no element, so that the sum stays right?",
            "Load `row < M && k0 + tx < K ? A[…] : 0.0f`, and B alike. No thread may return before "
            "the last barrier: guard the store with `if`, at the end.",
        ),
        step=2,
    ),
    Exercise(
        "03.1",
        "one store an element",
        _product(*_NAIVE),
        (
            Goal(
                "stores of each element of C",
                lambda seen: seen.counters.global_store_requests * 32 / _SIZE**2,
                1,
                marks=(2,),
            ),
        ),
        (
            "Who else could read `*c` while the loop runs? The compiler has to assume that "
            "somebody can.",
            "A variable inside of the function has no address that others know. (`__restrict__` "
            "takes away the doubt, too, but leaves the first store where it is.)",
            "Add up in `float sum`, and write `*c` once, after the loop.",
        ),
        step=3,
    ),
    Exercise(
        "04.1",
        "the right padding",
        _product(*_TILED),
        (*_NO_CONFLICT, _loads(0.75), _fetches(0.25)),
        (
            "Write down the banks of one store, `tx * (16 + PAD) + ty` modulo 32, for `ty` 0 and "
            "1. Which `tx` meet?",
            "With PAD 1 the 16 `tx` of one row already use even and odd banks. They should leave "
            "every other bank to the second row.",
            "Then the length of a row must be twice an odd number: `tx` runs through all 16 even "
            "banks, and the second row takes the odd ones.",
        ),
        step=4,
    ),
    Exercise(
        "05.1",
        "two outputs a thread",
        _product("coarse", (32, 16), (32, 32, 32)),
        (_wavefronts(1.0), _fetches(0.25)),
        (
            "A tile has 32 rows and the block 16. Who loads the other half of `As` and `Bs`? First "
            "make that right.",
            "Keep two sums. In the loop over `k`, take the element of `Bs` once and use it for "
            "both.",
            "`float b = Bs[k][tx];`, then `As[ty][k] * b` and `As[ty + 16][k] * b` in the same "
            "turn of the loop.",
        ),
        step=5,
    ),
    Exercise(
        "06.1",
        "128 bits where they are legal",
        _rows(),
        (
            _count(
                "requests to load 64×256 elements",
                "global_load_requests",
                _WIDE[0] * _WIDE[1] // 128,
            ),
            _count("requests to store them", "global_store_requests", _WIDE[0] * _WIDE[1] // 128),
        ),
        (
            "A 128-bit access needs an address that 16 divides. Where does the second row begin "
            "if a row has 127 columns?",
            "Every row begins at a multiple of 16 bytes only if 4 divides `cols`. And then no "
            "group of four reaches past the end of a row.",
            "Where 4 does not divide `cols`, take up to four elements one by one, with a guard.",
        ),
    ),
    Exercise(
        "07.1",
        "a square of outputs",
        _product("tiled", (64, 1), (32, 32, 8), _SMALL),
        (_wavefronts(0.4, 0.5), _loads(0.125)),
        (
            "16 outputs in a column need 16 + 1 elements at each `k`. How many does a square of 16 "
            "outputs need?",
            "With 4×4 outputs a thread, 32×32 outputs are 8×8 threads: `thread / 8` and "
            "`thread % 8`.",
            "A thread's rows are `thread / 8 * 4 + m`; its columns follow the same pattern.",
        ),
        _thread_tile(64, 32, 32),
    ),
    Exercise(
        "08.1",
        "columns in fours",
        _product("tiled", (64, 1), (32, 64, 8), _SMALL),
        (_wavefronts(0.35), _loads(0.1)),
        (
            "Eight threads of a row read 8 columns each, 8 words apart. In which banks do their "
            "first four words lie?",
            "In one 128-bit load, eight neighbouring threads should take 32 neighbouring words: "
            "four each.",
            "The other four columns of a thread lie 32 further on: `n / 4` chooses the half.",
        ),
        _thread_tile(64, 32, 64),
    ),
    Exercise(
        "09.1",
        "who stands where in a warp",
        _product("tiled", (32, 1), (8, 64, 8), _SMALL),
        (_wavefronts(0.25),),
        (
            "The block is one warp, so `thread` is the lane. Lanes of one row want the same "
            "elements of `As`, lanes of one column the same of `Bs`. By which bits of their "
            "numbers do they differ now?",
            "A load takes two wavefronts if lanes n and n xor 1 always want the same, or lanes n "
            "and n xor 2. Now the two lanes of a column are n and n xor 16, so `Bs` takes four.",
            "Let the last bit of the lane choose the row, and the rest the column.",
        ),
        _thread_tile(32, 8, 64),
    ),
    Exercise(
        "10.1",
        "fetch ahead",
        _product(*_TILED),
        (
            Goal(
                "global loads for three tiles that set out once the arithmetic on the first has "
                "begun",
                _late("tiled", 16),
                2,
            ),
        ),
        (
            "The first tiles must be fetched before the loop begins.",
            "A thread fetches one element of A and one of B for the next tiles. Where can it keep "
            "them while `As` and `Bs` are still being read?",
            "In the loop: registers to shared memory, barrier, load the next into the registers, "
            "arithmetic, barrier. The guards for the edges keep the last fetch from reading.",
        ),
        step=10,
    ),
    Exercise(
        "11.1",
        "one barrier a tile",
        _product(*_TILED),
        (_barriers(_SIZE // 16, _SIZE**2 // 32, _SIZE // 16 + 1), _fetches(0.25)),
        (
            "The second barrier keeps a fast warp from overwriting what a slow one still reads. "
            "What if it wrote somewhere else?",
            "Two pairs of tiles, used in turn: `As[2][TILE][TILE]` and an index that flips.",
            "With one barrier between the stores and the arithmetic, a warp can be at most one "
            "tile ahead, and that is the other buffer.",
        ),
        step=11,
    ),
    Exercise(
        "E.1",
        "share out a sum",
        _matrix_vector(),
        (_sectors(4.0),),
        (
            "At one moment, which elements of its row do lanes 0 and 1 read? How far apart are "
            "they?",
            "It is the same sum in whatever order. Which share of the row must a lane take so "
            "that 32 lanes read 32 neighbours at a time?",
            "Lane 0 takes elements 0, 32, 64, …, lane 1 takes 1, 33, 65, …",
        ),
    ),
    Exercise(
        "E.2",
        "no conflict, and no padding",
        _transposition(),
        (
            *_NO_CONFLICT,
            _sectors(4.0),
            _sectors(4.0, "store"),
            Goal("bytes of shared memory", lambda seen: seen.shared_bytes, 4096),
        ),
        (
            "A row of the tile has 32 words, so a column lies in a single bank. The words of a row "
            "may stand in any order, as long as reader and writer agree on it.",
            "Row r could be rotated by r words: then a column lies in 32 banks.",
            "Rotation is `(c + r) % 32`; exclusive or, `c ^ r`, does as well and costs one "
            "instruction. Use it where the tile is written and where it is read. (With `c - r` "
            "take care: in C, `%` of a negative number is negative.)",
        ),
    ),
    Exercise(
        "E.3",
        "a barrier for those who share",
        _product("staged", (32, 8), (8, 32, 32)),
        (
            _barriers(_SIZE // 32, _SIZE**2 // 32, 0),
            _fetches(1.05),
        ),
        (
            "Who writes `As[ty]`, and who reads it? In which warp are they?",
            "Warps run at their own pace, and so may the lanes of one warp: without any "
            "synchronisation there is a race, whatever the result says.",
            "`__syncwarp()` makes the lanes of a warp wait for each other, and for nobody else. "
            "Both places need one.",
        ),
    ),
    Exercise(
        "E.4",
        "coarsen along N",
        _product("coarse", (16, 16), (16, 32, 16)),
        (_loads(0.7, 1.2), _fetches(0.25)),
        (
            "First make it right: two sums, two elements of `Bs` to load, two of C to write. "
            "`As[ty][k]` serves both.",
            "The second column may be `tx + 16`, or the neighbour of the first. Which of the two "
            "can one load bring together with the first?",
            "Columns `2 * tx` and `2 * tx + 1` of `Bs` are one 64-bit load, where the compiler "
            "knows that the address is a multiple of 8. `alignas(8)` makes sure of it.",
        ),
        step=5,
    ),
    Exercise(
        "E.5",
        "what alpha and beta forbid",
        _product(
            *_NAIVE,
            counted=tuple(_scaled((64,) * 3, *scalars) for scalars in ((0, 0), (0, 2), (0, 1))),
            strict=True,
        ),
        (
            _count("requests to load with alpha 0 and beta 0", "global_load_requests", 0),
            _count(
                "requests to load with alpha 0 and beta 2, C once",
                "global_load_requests",
                64 * 64 // 32,
                1,
            ),
            _count("requests to store with alpha 0 and beta 1", "global_store_requests", 0, 2),
        ),
        (
            "Zero times NaN is NaN. So where beta is 0, multiplying by it is not enough: C must "
            "not be read.",
            "The same holds for A and B where alpha is 0: the loop must not run at all.",
            "With alpha 0 and beta 1, C is to stay as it is: return before anything is written.",
        ),
        step=1,
    ),
    Exercise(
        "E.6",
        "B transposed",
        _product("tiled", (32, 32), (32, 32, 32), transposed=True),
        (_sectors(4.0), *_NO_CONFLICT),
        (
            "A row of B now holds one column's elements along K. Neighbouring lanes should read "
            "neighbours in it: which index must `threadIdx.x` choose?",
            "Load B exactly as A is loaded: row `blockIdx.x * 32 + ty`, element `k0 + tx`. Then "
            "`Bs` is [col][k], and the arithmetic reads `Bs[tx][k]`.",
            "32 lanes reading `Bs[tx][k]` meet in one bank: chapter 4 has a cure.",
        ),
    ),
)
EXERCISES = {each.name: each for each in _EXERCISES}
