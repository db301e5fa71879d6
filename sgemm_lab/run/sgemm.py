"""`sgemm`: BLAS's product for NumPy and CuPy arrays, by a kernel of the ladder."""

import math
import warnings
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path

import numpy as np

from sgemm_lab.devices import device_named
from sgemm_lab.ladder import Step, Variant, as_shape, as_variant, ladder
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run.backend import ARCH, cp, gpu_available, ptx
from sgemm_lab.run.launch import launch

# Multiply-adds a second of the PTX machine: what it reached on one core of a server at 512³ with
# the steps of the ladder, 0.6 to 1.7·10⁸ (benchmarks/ptx_machine.py). Only for a warning.
PTX_RATE = 1e8
PATIENCE = 30  # seconds that the PTX machine may take without a warning
LARGEST = float(np.finfo(np.float32).max)


def sgemm(
    A,
    B,
    alpha: float = 1.0,
    beta: float = 0.0,
    C=None,
    *,
    out=None,
    step: Step | Variant | int | str | None = None,
):
    """alpha·A·B + beta·C in float32, by a kernel of this book.

    A is M×K, B is K×N, C is M×N: all NumPy arrays or all CuPy arrays of float32, of any shape,
    sides of 0 included, in any memory layout (what is no plain row-major array is copied). The
    result is of the same kind. NumPy arrays go to the GPU and back where there is one; else the PTX
    machine computes, which takes about a second at 512³: a warning comes first if it will be long.

    As NumPy has it, and unlike BLAS, C is only read: the result is a new array. `out=C` is BLAS's
    way, `out` being any array of the result's shape. As in BLAS, C must be given if beta is not 0
    and is not read if it is, so that NaN in C does not matter then; if alpha is 0,
    A and B are not.

    `step` is the kernel: a number or a Step (its defaults) or a Variant; else `fastest` chooses.
    Raises TypeError for what is no such array or number and ValueError for shapes that don't fit
    and numbers beyond float32, before anything is copied or runs.
    """
    on = _kind(A=A, B=B, C=C, out=out)
    M, N, K = _shape(A, B, C, out)
    alpha, beta = _float32("alpha", alpha), _float32("beta", beta)
    if C is None and beta != 0:
        raise ValueError(f"beta={beta:g} scales C, but no C was given. Pass C, or leave beta 0.")
    variant = _variant(step, M, N, K)
    if alpha == 0 or K == 0:
        result = on.zeros((M, N), np.float32) if beta == 0 else beta * on.asarray(C)
    else:
        result = _product(variant, A, B, alpha, beta, C, on)
    if out is None:
        return result
    out[...] = result
    return out


def _product(variant: Variant, A, B, alpha: np.float32, beta: np.float32, C, on):
    """The result of a launch, as an array of `on`."""
    (M, K), N = A.shape, B.shape[1]
    machine = cp if on is np else on
    if machine is ptx and variant.step.function:
        _warn(variant, M, N, K)
    left, right = (machine.asarray(on.ascontiguousarray(X)) for X in (A, B))
    empty = beta == 0
    result = machine.empty((M, N), np.float32) if empty else machine.array(C, order="C")
    launch(variant, left, right, result, alpha, beta, on=machine)
    return machine.asnumpy(result) if on is np else result


def fastest(
    M: int, N: int, K: int, gpu: str | None = None, directory: Path = MEASUREMENTS
) -> Variant:
    """The variant that was recorded fastest on `gpu`, at the recorded size nearest to M×N×K.

    Nearest is by the number of multiply-adds, as a ratio: what decides between the steps is mostly
    whether a product has blocks enough for the chip. cuBLAS is left out, and runs of kernels that
    have changed since. `gpu` is this machine's if it has records, else the H200, where all settings
    of all steps were measured. Raises LookupError where nothing is recorded.
    """
    return _fastest(M * N * K, gpu or _gpu(directory), _capability(), Path(directory))


@lru_cache(maxsize=1024)
def _fastest(work: int, gpu: str, capability: tuple[int, int], directory: Path) -> Variant:
    from sgemm_lab.measure import records

    runs = [
        run
        for run in records.runs(gpu=gpu, kind="measured", directory=directory)
        if run.step and not run.stale and ladder[run.step].min_capability <= capability
    ]
    if not runs:
        raise LookupError(
            f"nothing is recorded on {gpu}: run `python -m sgemm_lab bench`, or name one: step=9."
        )
    near = min((r.M * r.N * r.K for r in runs), key=lambda n: abs(math.log(n / max(work, 1))))
    best = max((r for r in runs if near == r.M * r.N * r.K), key=lambda run: run.gflops)
    return ladder[best.step](**best.macros)


def _gpu(directory: Path) -> str:
    """The key of this machine's GPU if it has records, else "h200"."""
    from sgemm_lab.measure import records

    if gpu_available():
        name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
        here = device_named(name.decode() if isinstance(name, bytes) else name)
        if here and records.runs(gpu=here.key, kind="measured", directory=directory):
            return here.key
    return "h200"


def _capability() -> tuple[int, int]:
    """What the kernel will run on: this machine's GPU, or what the PTX machine stands for."""
    digits = cp.cuda.Device().compute_capability if cp is not ptx else ARCH.partition("_")[2]
    return int(digits[:-1]), int(digits[-1])


def _variant(step, M: int, N: int, K: int) -> Variant:
    if step is None:
        return fastest(M, N, K)
    if isinstance(step, bool):
        raise TypeError(f"step is {step}, which is no number of a step. Use step=2, for one.")
    if isinstance(step, Integral):
        step = int(step)
    return ladder[step]() if isinstance(step, int | str) else as_variant(step)


def _float32(name: str, value) -> np.float32:
    """The value as the kernel's float. TypeError, or ValueError for what would become infinite."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} is a {_type(value)}; it is a real number.")
    if LARGEST < abs(value) < math.inf:
        raise ValueError(f"{name} is larger than a float32 can be, {LARGEST:.2g}.")
    return np.float32(value)


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


def _kind(**arrays):
    """The module, NumPy or CuPy, that all of these are arrays of. TypeError says what is wrong."""
    kinds = {"NumPy": np} | ({"CuPy": cp} if gpu_available() else {})
    found = {}
    for name, array in arrays.items():
        if array is None and name in ("C", "out"):
            continue
        kind = next((k for k, module in kinds.items() if isinstance(array, module.ndarray)), None)
        if kind is None or isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{name} is a {_type(array)}; sgemm takes arrays of {' or '.join(kinds)}. Use "
                f"np.asarray({name}, dtype=np.float32)."
            )
        if array.dtype != np.float32:
            raise TypeError(
                f"{name} holds {array.dtype}; sgemm is the product in float32. Use "
                f"{name}.astype(np.float32), which keeps 7 digits, or {name} @ … for {array.dtype}."
            )
        if array.ndim != 2:
            raise ValueError(
                f"{name} has shape {array.shape}; a matrix has two dimensions. A row is "
                f"{name}[None, :], a column {name}[:, None]."
            )
        found[name] = kind
    if len(set(found.values())) > 1:
        each = ", ".join(f"{name} is of {kind}" for name, kind in found.items())
        raise TypeError(f"{each}. Take all to one side: cp.asarray(…) or cp.asnumpy(…).")
    return kinds[found["A"]]


def _shape(A, B, C, out) -> tuple[int, int, int]:
    (M, K), (rows, N) = A.shape, B.shape
    if rows != K:
        raise ValueError(
            f"A is {M}×{K} and B is {rows}×{N}: A's columns must be as many as B's rows."
        )
    for name, array in (("C", C), ("out", out)):
        if array is not None and array.shape != (M, N):
            raise ValueError(f"{name} is {array.shape[0]}×{array.shape[1]}; A·B is {M}×{N}.")
    as_shape((M, N, K))
    if out is not None and not getattr(out.flags, "writeable", True):
        raise ValueError("out is read-only. Use out=C.copy(), or no out: the result is new then.")
    return M, N, K


def _warn(variant: Variant, M: int, N: int, K: int) -> None:
    """Warns of a product that will take the PTX machine long, before it starts."""
    BM, BN, _ = variant.tile
    seconds = -(-M // BM) * BM * -(-N // BN) * BN * K / PTX_RATE
    if seconds > PATIENCE:
        length = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
        warnings.warn(
            f"{M}×{N}×{K} takes the PTX machine about {length}: there is no GPU here, and it "
            "computes lane by lane. For the result use A @ B; to look at the kernel, a smaller "
            "product.",
            stacklevel=4,
        )
