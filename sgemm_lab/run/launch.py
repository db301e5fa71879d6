"""A typed launcher: everything is checked, in words, before anything is launched.

CuPy passes a kernel whatever it is given: a Python float arrives as a double, a float64 array or a
transposed view is read as if it were contiguous float32. `launch` refuses all that.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from numbers import Real

import numpy as np

from sgemm_lab.ladder import (
    GRID_LIMITS,
    INT_MAX,
    INTERFACE,
    STATIC_SHARED_PER_BLOCK,
    THREADS_PER_BLOCK,
    Step,
    Variant,
    as_variant,
)
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import cp, gpu_available, ptx
from sgemm_lab.simt.host import signature


def launch(variant: Variant | Step, A, B, C=None, alpha: float = 1.0, beta: float = 0.0, on=cp):
    """C = alpha·A·B + beta·C with one kernel of the ladder; returns C when it is finished.

    A is M×K, B is K×N, C is M×N: contiguous row-major float32 arrays of `cp`, C apart from A and B.
    C is made if it is not given, and not read if beta is 0. A step stands for its default variant.
    `on` is where it runs: cp, or backend.ptx for the PTX machine and NumPy arrays in any case.
    Raises TypeError or ValueError, before anything runs, for what the kernel would misread or the
    device refuse, and RuntimeError if the kernel itself failed.
    """
    run = prepare(variant, A, B, C, alpha, beta, on)
    result = run()
    _synchronise(variant, on)
    return result


def prepare(
    variant: Variant | Step, A, B, C=None, alpha: float = 1.0, beta: float = 0.0, on=cp
) -> Callable[[], object]:
    """All of launch's checks, and the compilation; calling what is returned launches, without
    waiting, and gives C. For timing the same launch many times."""
    variant = as_variant(variant)
    M, N, K = _shapes(A, B, C, on)
    alpha, beta = _scalar("alpha", alpha), _scalar("beta", beta)
    if C is None:
        if beta != 0:
            raise ValueError(f"beta={beta} scales C, but no C was given. Pass C, or leave beta 0.")
        C = on.empty((M, N), dtype=on.float32)
    if variant.step.function is None:
        refuse_tf32()
        return lambda: _cublas(A, B, C, alpha, beta, on)

    grid, block = variant.grid(M, N), variant.block
    dynamic = variant.step.dynamic_bytes
    if problem := limits(grid, block, variant.shared_bytes + dynamic):
        raise ValueError(f"{variant.key}, M={M}, N={N}: {problem}")
    _check_capability(variant, on)
    if M == 0 or N == 0:
        return lambda: C
    step = variant.step
    function = kernel(step.source, variant.options, step.function, step.filename, on)
    args = bind(step, M, N, K, alpha, A, B, beta, C)

    def run():
        function(grid, block, args, shared_mem=dynamic)
        return C

    return run


def bind(step: Step, M: int, N: int, K: int, alpha, A, B, beta, C) -> tuple:
    """The arguments of a launch in the order of the kernel's parameters, each scalar in its type.

    An int is 32 bits unless the kernel's text says otherwise (`size_t M`); a float always.
    """
    given = dict(zip(INTERFACE, (M, N, K, alpha, A, B, beta, C), strict=True))
    declared = signature(step.source, step.function, len(step.parameters))
    kinds = {"M": np.int32, "N": np.int32, "K": np.int32, "alpha": np.float32, "beta": np.float32}
    return tuple(
        (each.dtype.type if each.dtype and not each.pointer else kinds[name])(given[name])
        if name in kinds else given[name]
        for name, each in zip(step.parameters, declared, strict=True)
    )  # fmt: skip


def limits(grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int = 0) -> str | None:
    """Why no device runs a launch of this size, in one sentence; None if it can."""
    threads = int(np.prod(block, dtype=object))
    if threads > THREADS_PER_BLOCK:
        return (
            f"a block of {'×'.join(map(str, block))} = {threads} threads is too large; "
            f"a block may have {THREADS_PER_BLOCK}."
        )
    if shared_bytes > STATIC_SHARED_PER_BLOCK:
        return (
            f"a block needs {shared_bytes} bytes of shared memory; it may declare "
            f"{STATIC_SHARED_PER_BLOCK}."
        )
    for axis, blocks, most in zip("xyz", grid, GRID_LIMITS, strict=False):
        if blocks > most:
            return (
                f"the grid has {blocks} blocks along {axis}; it may have {most}. "
                "Use larger tiles, or fold the rest into another axis."
            )
    return None


def refuse_tf32() -> None:
    """RuntimeError if cuBLAS would round float32 inputs to TF32's 10 bits: not the same product."""
    if not gpu_available():
        return
    from cupy._core._routines_linalg import COMPUTE_TYPE_TF32, get_compute_type

    if os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        raise RuntimeError("NVIDIA_TF32_OVERRIDE turns TF32 on. Unset it: cuBLAS is to use FP32.")
    if get_compute_type(np.float32) == COMPUTE_TYPE_TF32:
        raise RuntimeError("CUPY_TF32 turns TF32 on. Unset it and restart: cuBLAS is to use FP32.")


@lru_cache(maxsize=256)
def kernel(source: str, options: tuple[str, ...], function: str, filename: str, on=cp):
    """The compiled kernel, once per process. CompileError shows the lines of the source."""
    named = {"filename": filename} if on is ptx else {}  # CuPy has no such parameter
    try:
        module = on.RawModule(code=nvrtc.included(source), options=options, **named)
        return module.get_function(function)
    except Exception as error:
        if type(error).__name__ == "CompileException":  # CuPy's: say it in our words
            nvrtc.compile_ptx(source, options, filename=filename)
        raise


def _shapes(A, B, C, on) -> tuple[int, int, int]:
    """M, N and K, once every array is what a kernel can read."""
    arrays = {"A": A, "B": B} | ({} if C is None else {"C": C})
    for name, array in arrays.items():
        _check_kind(name, array, on)
    (M, K), (rows, N) = A.shape, B.shape
    if rows != K:
        raise ValueError(
            f"A is {M}×{K} and B is {rows}×{N}: A's columns must be as many as B's rows."
        )
    if C is not None and C.shape != (M, N):
        raise ValueError(f"C is {'×'.join(map(str, C.shape))}; A·B is {M}×{N}.")
    for name, size in {"M": M, "N": N, "K": K}.items():
        if size > INT_MAX:
            raise ValueError(f"{name}={size} does not fit the kernel's int; the most is {INT_MAX}.")
    for name, array in arrays.items():
        _check_layout(name, array)
    if C is not None:
        _check_output(C, {"A": A, "B": B})
    return M, N, K


def _check_kind(name: str, array, on) -> None:
    if not isinstance(array, on.ndarray):
        raise TypeError(f"{name} is a {_kind(array)}. Use cp.asarray({name}, dtype=cp.float32).")
    if array.dtype != np.float32:
        raise TypeError(
            f"{name} holds {array.dtype}; the kernels read float32. Use {name}.astype(cp.float32)."
        )
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; a matrix has two dimensions.")


def _check_layout(name: str, array) -> None:
    flags = array.flags
    if not flags.c_contiguous:
        order = "in Fortran (column-major) order" if flags.f_contiguous else "a view with gaps"
        raise ValueError(
            f"{name} is {order}, strides {array.strides} bytes; the kernels read it row by row "
            f"without gaps. Use {name}.copy(order='C')."
        )
    if _address(array) % array.itemsize:
        raise ValueError(f"{name} starts off a 4-byte boundary. Use {name}.copy().")


def _check_output(C, inputs: dict) -> None:
    if not getattr(C.flags, "writeable", True):
        raise ValueError("C is read-only. Use C.copy().")
    start, end = _address(C), _address(C) + C.nbytes
    for name, array in inputs.items():
        if start < _address(array) + array.nbytes and _address(array) < end:
            raise ValueError(
                f"C overlaps {name} in memory; blocks would overwrite what others still read. "
                "Give C its own array."
            )


def _check_capability(variant: Variant, on) -> None:
    if on is ptx:
        return
    digits = on.cuda.Device().compute_capability  # "75", "90", "120"
    capability = int(digits[:-1]), int(digits[-1])
    if capability < variant.step.min_capability:
        raise ValueError(
            "{} needs compute capability {}.{}; this GPU has {}.{}.".format(
                variant.step.stem, *variant.step.min_capability, *capability
            )
        )


def _scalar(name: str, value) -> np.float32:
    """The value as the kernel's float: a Python float would arrive as a double."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} is a {_kind(value)}; it is a real number.")
    return np.float32(value)


def _cublas(A, B, C, alpha: np.float32, beta: np.float32, on):
    if alpha == 1 and beta == 0:
        on.matmul(A, B, out=C)
    elif beta == 0:
        C[...] = alpha * on.matmul(A, B)
    else:
        C[...] = alpha * on.matmul(A, B) + beta * C
    return C


def _synchronise(variant: Variant | Step, on) -> None:
    """Wait for the GPU, so that a kernel's failure is reported here and not by a later call."""
    if on is ptx:
        return
    try:
        on.cuda.Device().synchronize()
    except Exception as error:
        raise RuntimeError(
            f"{variant!r} failed on the GPU ({error}). CUDA is unusable in this process from here "
            "on: restart the notebook's kernel."
        ) from error


def _address(array) -> int:
    """Where the array's first element lies, on the GPU or in main memory."""
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
