"""Is a kernel right? Every launch is compared with float64, on the shapes that break kernels.

The same check runs on a GPU and on the PTX machine.
"""

import argparse
import html
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

import numpy as np

from sgemm_lab.ladder import Step, Variant, as_shape, as_variant, ladder
from sgemm_lab.run.backend import cp, ptx
from sgemm_lab.run.launch import launch

EPS = float(np.finfo(np.float32).eps)
GUARD = 128  # floats before and after each array: a multiple of every alignment a kernel may want
NAN = np.array(0x7FC0BEEF, np.uint32)  # a NaN that no arithmetic makes
SHOWN = 4  # failures that a report shows
SCALARS = tuple(product((1.0, 0.0, -0.5, 2.25), (0.0, 1.0, -0.5, 2.25)))  # alpha, beta

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Check:
    """What a check found. `worst` is the largest error as a fraction of its bound, at the shape
    `worst_at`; `failures` are sentences, none if the kernel is right."""

    variant: Variant
    shapes: tuple[Shape, ...]
    worst: float
    worst_at: Shape | None
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        name = _name(self.variant)
        shapes = f"{len(self.shapes)} shape{'s' if len(self.shapes) != 1 else ''}"
        if self.failures:
            more = len(self.failures) - SHOWN
            rest = [f"and on {more} more"] if more > 0 else []
            lines = [f"{name}: WRONG, tried on {shapes}", *self.failures[:SHOWN], *rest]
            return "\n  ".join(lines)
        where = f" at {_shape(self.worst_at)}" if self.worst_at else ""
        return (
            f"{name}: right on {shapes}; "
            f"worst error {self.worst:.2f} of the bound √K·eps·(|A||B|){where}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def default_shapes(variant: Variant) -> tuple[Shape, ...]:
    """(M, N, K) around the variant's block tile: sizes of 0, 1, tile − 1, tile, tile + 1 and odd
    numbers of tiles, M, N and K different, and one long K, where TF32 shows."""
    m, n, k = (size if size > 1 else 32 for size in variant.tile)
    if not {"M", "N", "K"} <= set(variant.step.parameters):  # a kernel for square matrices alone
        edges = 1, m - 1, m, m + 1, n + 1, 2 * k, 3 * n - 1, 3 * m + 1
        return tuple((edge,) * 3 for edge in dict.fromkeys(edges))
    return (
        (1, 1, 1),
        (1, n + 1, k - 1),
        (m + 1, 1, k + 2),
        (m - 1, n + 1, 1),
        (m, 2 * n, 3 * k),
        (m - 1, n, 2 * k + 1),
        (m + 1, 2 * n + 1, 3 * k + 1),
        (3 * m, n - 1, k),
        (2 * m - 1, 3 * n + 1, k + 1),
        (3 * m + 1, n + 2, 2 * k - 1),
        (m + 1, n - 1, 0),
        (0, n, k),
        (m, 0, k + 1),
        (m + 1, n - 1, 512),
    )


def scalars(variant: Variant) -> list[tuple[float, float]]:
    """The pairs of SCALARS that the kernel has parameters for; without, alpha is 1 and beta 0."""
    takes = variant.step.parameters
    return [
        (alpha, beta)
        for alpha, beta in SCALARS
        if (alpha == 1 or "alpha" in takes) and (beta == 0 or "beta" in takes)
    ]


def thorough_shapes(variant: Variant) -> tuple[Shape, ...]:
    """The default shapes and as many more: one long side each way, whole tiles in odd numbers, and
    rows that hold a multiple of four elements, of A or B or both, where the tile's edge is none."""
    m, n, k = (size if size > 1 else 32 for size in variant.tile)
    return tuple(dict.fromkeys((
        *default_shapes(variant),
        (m, n, k),
        (3 * m, n, k),
        (m, 3 * n, 5 * k),
        (m + 1, n + 2, k + 3),
        (m - 1, n - 2, k - 3),
        (m + 3, n + 4, k + 4),
        (2 * m + 5, n - 4, 3 * k - 4),
        (m + 2, n + 4, k + 1),
        (m + 2, n + 1, k + 4),
        (m - 2, 2 * n + 8, 4),
        (2 * m, n + 3, 2 * k),
        (2 * m, 2 * n, 2 * k + 2),
        (4097, 3, 2),
        (3, 4097, 5),
        (5, 2, 4097),
        (2 * m, n + 4, 0),
    )))  # fmt: skip


def check(
    variant: Variant | Step,
    shapes: Iterable[Shape] | None = None,
    seed: int = 0,
    on=cp,
    offsets: Shape = (0, 0, 0),
) -> Check:
    """Run a variant on random inputs of each shape (M, N, K) and compare with float64.

    On each shape: small whole numbers must come out exactly; random numbers within
    √K·eps·(|A||B|), element by element, twice with the same bits. With an alpha and a beta (every
    pair of 0, 1, −0.5 and 2.25 has its turn) the bound is |alpha| times that, plus
    eps·(|alpha·AB| + |beta·C|) for the three roundings of the epilogue. Where beta is 0, C is full
    of NaN. A, B and C lie between guards that must stay as they were.

    eps is 2⁻²³. Rounding errors of a sum of K products grow like √K, so that √K·eps is generous
    to FP32 and, at K = 512, too strict for TF32; see Higham and Mary, "A new approach to
    probabilistic rounding error analysis" (2019). A step stands for its default variant. `on` is
    where it runs, as for `launch`; A, B and C begin so many floats after a multiple of 512 bytes as
    `offsets` say. Raises TypeError or ValueError for what is no variant or shape.
    """
    variant = as_variant(variant)
    shapes = default_shapes(variant) if shapes is None else _shapes(shapes)
    rng = np.random.default_rng(seed)
    turns = cycle(scalars(variant))
    worst, worst_at, failures = 0.0, None, []
    for shape in shapes:
        try:
            error, problem = _try(variant, shape, rng, turns, partial(_run, on=on, offsets=offsets))
        except RuntimeError as fault:  # the PTX machine's findings, or the GPU's
            error, problem = 0.0, str(fault)
        if problem:
            failures.append(f"{_shape(shape)}: {problem}")
            if on is not ptx and "restart" in problem:
                break  # nothing more can run in this process
        elif error > worst:
            worst, worst_at = error, shape
    return Check(variant, shapes, worst, worst_at, tuple(failures))


def _shapes(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    if not isinstance(shapes, Iterable) or isinstance(shapes, str):
        raise TypeError(f"shapes={shapes!r} is no list of shapes, such as [(33, 65, 97)].")
    shapes = tuple(shapes)
    if len(shapes) == 3 and not any(isinstance(shape, Iterable) for shape in shapes):
        raise TypeError(f"shapes={shapes} is one shape; check takes a list of them: [{shapes}].")
    return tuple(map(as_shape, shapes))


def _try(variant: Variant, shape: Shape, rng, turns, run: Callable) -> tuple[float, str | None]:
    """The largest error as a fraction of its bound, and the first thing that was wrong."""
    M, N, K = shape
    whole = [rng.integers(-4, 5, size).astype(np.float32) for size in ((M, K), (K, N), (M, N))]
    real = [rng.uniform(-1, 1, size).astype(np.float32) for size in ((M, K), (K, N), (M, N))]
    worst = 0.0
    for alpha, beta in (SCALARS[0], next(turns), next(turns)):
        about = f"alpha={alpha:g}, beta={beta:g}"
        for kind, inputs in (("whole numbers", whole), ("random numbers", real)):
            result, problem = run(variant, inputs, alpha, beta)
            if problem:
                return worst, f"{problem} ({about})"
            right, bound = _expected(inputs, alpha, beta)
            if kind == "whole numbers":
                bound = np.zeros_like(bound)
            error, problem = _compare(result, right, bound)
            if problem:
                return worst, f"{problem} ({kind}, {about})"
            worst = max(worst, error)
    again, problem = run(variant, inputs, alpha, beta)
    if problem or again.tobytes() != result.tobytes():
        return worst, problem or "two runs on the same input differ: threads race"
    return worst, None


def _run(variant: Variant, inputs: list, alpha: float, beta: float, on, offsets: Shape):
    """C on the host, and whether anything was written that should not have been."""
    A, B, C = inputs
    if beta == 0:
        C = np.full_like(C, 0)
        C.view(np.uint32)[...] = NAN
    placed = [_between_guards(X, on, more) for X, more in zip((A, B, C), offsets, strict=True)]
    launch(variant, *(inner for _, inner in placed), alpha=alpha, beta=beta, on=on)
    after = [on.asnumpy(outer).view(np.uint32) for outer, _ in placed]
    for name, before, outer, more in zip("ABC", (A, B, C), after, offsets, strict=True):
        start, end = GUARD + more, GUARD + more + before.size
        if name != "C" and (outer[start:end] != before.reshape(-1).view(np.uint32)).any():
            return C, f"{name} was written to"
        for side, guard in (("before", outer[:start]), ("after", outer[end:])):
            if (guard != NAN).any():
                return C, f"memory {side} {name} was written to"
    return outer[start:end].view(np.float32).reshape(C.shape), None


def _between_guards(array: np.ndarray, on, more: int = 0):
    """A one-dimensional array with guards full of NaN, and the part between them; the guard in
    front has some floats `more`."""
    outer = np.empty(array.size + 2 * GUARD + more, np.float32)
    outer.view(np.uint32)[...] = NAN
    inner = slice(GUARD + more, GUARD + more + array.size)
    outer[inner] = array.reshape(-1)
    outer = on.asarray(outer)
    return outer, outer[inner].reshape(array.shape)


def _expected(inputs: list, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64, and how far from it a float32 kernel may be."""
    A, B, C = (array.astype(np.float64) for array in inputs)
    product_, magnitude = A @ B, np.abs(A) @ np.abs(B)
    bound = abs(alpha) * np.sqrt(A.shape[1]) * EPS * magnitude
    if (alpha, beta) != (1, 0):
        bound += EPS * (np.abs(alpha * product_) + np.abs(beta * C))
    return alpha * product_ + beta * C, bound


def _compare(result: np.ndarray, right: np.ndarray, bound: np.ndarray):
    """The largest error as a fraction of its bound, and a sentence about the worst element."""
    if result.size == 0:
        return 0.0, None
    error = np.abs(result - right)
    ratio = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf), where=bound > 0)
    ratio[np.isnan(ratio) | np.isnan(error)] = np.inf  # a NaN is as wrong as can be
    worst = float(ratio.max())
    if worst <= 1:
        return worst, None
    i, j = (int(index) for index in np.unravel_index(ratio.argmax(), ratio.shape))
    times = f", {worst:.3g} times the allowed error away" if np.isfinite(worst) else ""
    return worst, (
        f"C[{i}, {j}] is {result[i, j]:.9g} and should be {right[i, j] + 0.0:.9g}{times}; "
        f"{np.count_nonzero(ratio > 1)} of {ratio.size} elements are wrong"
    )


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab check 2 TILE=16`: exit code 0 if right, 1 if wrong, 2 if misasked."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab check", description="Compare kernels with float64."
    )
    parser.add_argument(
        "what", nargs="*", help="steps (2 or 02_tiled) and macros (TILE=16); default: every step"
    )
    parser.add_argument("--all", action="store_true", help="every legal variant of each step")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    right = True
    try:
        for variant in ladder.asked(given.what, given.all):
            found = check(variant, seed=given.seed)
            print(found, flush=True)
            right &= found.ok
    except (KeyError, ValueError, ImportError) as error:  # unknown step, macro; CompileError
        print(error.args[0], file=sys.stderr)
        return 2
    return 0 if right else 1


def _shape(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _name(variant: Variant) -> str:
    return " ".join([variant.step.stem, *([variant.label] if variant.label != "default" else [])])
