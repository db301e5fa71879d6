"""`cp`: CuPy where there is a GPU; elsewhere the same calls on NumPy and the PTX machine.

Only what the book uses is covered. Anything else raises an AttributeError that says so.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace

import numpy as np
from tqdm import tqdm

from sgemm_lab.run import nvrtc
from sgemm_lab.simt import host
from sgemm_lab.simt.memory import POISON
from sgemm_lab.simt.sanitizer import never_written

BAR_AFTER = 4  # seconds without a word
ARCH = "compute_75"  # what the PTX machine is given: the oldest GPU the book speaks of, the T4


@cache
def gpu_available() -> bool:
    """Whether CuPy finds a GPU. SGEMM_LAB_BACKEND=ptx says no for it."""
    if os.environ.get("SGEMM_LAB_BACKEND") == "ptx":
        return False
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # a CuPy without driver or libraries fails in many ways, all meaning no
        return False


class NoGpu(RuntimeError):
    """Something was asked for that only a GPU can give: a time."""


class RawModule:
    """`cupy.RawModule` for the PTX machine: CUDA C++, compiled by NVRTC when first needed.

    One thing differs: CuPy adds -ftz=true to every compilation, so that on a GPU float32 numbers
    below 1.2e-38 count as zero. Here they are kept, as nvcc keeps them, unless `options` asks.
    """

    def __init__(
        self, *, code: str, options=(), name_expressions=None, filename: str = "kernel.cu"
    ):
        self.code, self.options, self.filename = code, tuple(options), filename
        self.name_expressions = tuple(name_expressions or ())
        self._loaded = None

    def compile(self) -> None:
        """Compile now. Raises CompileError with the lines around each error."""
        self._ptx()

    def _ptx(self):
        return nvrtc.compile_ptx(
            self.code, self.options, ARCH, self.filename, self.name_expressions
        )

    def get_function(self, name: str) -> "RawKernel":
        ptx = self._ptx()
        if self._loaded is None:  # its functions share its __device__ variables
            self._loaded = host.load(ptx.text, self.code, self.filename)
        lowered = ptx.names.get(name, name)
        self._loaded.module.kernel(lowered)
        return RawKernel(self.code, name, _loaded=(self._loaded, lowered))


class RawKernel:
    """`cupy.RawKernel` for the PTX machine: call it with (grid, block, args)."""

    def __init__(self, code: str, name: str, options=(), *, _loaded=None):
        self.name = name
        self.max_dynamic_shared_size_bytes = host.STATIC_SHARED
        if _loaded is None:
            module = RawModule(code=code, options=options)
            _loaded = module.get_function(name)._loaded
        self._loaded = _loaded

    def __call__(self, grid, block, args, *, shared_mem: int = 0) -> None:
        loaded, lowered = self._loaded
        limit = max(host.STATIC_SHARED, self.max_dynamic_shared_size_bytes)
        launch = loaded.launch(
            lowered, grid, block, args, shown=self.name, shared_mem=shared_mem, shared_limit=limit
        )
        with progress(self.name) as step:
            launch.run(step)


@contextmanager
def progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, total): a text bar on stderr, once a launch takes seconds."""
    began, bar = time.monotonic(), None

    def step(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and done < total and time.monotonic() - began > BAR_AFTER:
            bar = tqdm(desc=name, unit="block", total=total, leave=False, file=sys.stderr)
        if bar is not None:
            bar.update(done - bar.n)

    try:
        yield step
    finally:
        if bar is not None:
            bar.close()


def _poisoned(shape, dtype=np.float64, order="C") -> np.ndarray:
    """`cp.empty`: memory nobody wrote holds NaN (or −1), the same on every machine."""
    array = np.empty(shape, dtype, order)
    array.reshape(-1).view(np.uint8)[:] = POISON
    return never_written(array)


class _Event:
    """`cupy.cuda.Event`: it can be recorded; without a GPU there is no time to be read from it."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_) -> None:
        pass

    synchronize = record


def _no_time(*_):
    raise NoGpu("there is no GPU here, so there is no time to measure; charts show recorded runs")


_CUDA = SimpleNamespace(
    is_available=lambda: False,
    Event=_Event,
    get_elapsed_time=_no_time,
    Device=lambda number=0: SimpleNamespace(id=number, synchronize=lambda: None),
    Stream=SimpleNamespace(null=SimpleNamespace(synchronize=lambda: None)),
    runtime=SimpleNamespace(getDeviceCount=lambda: 0, deviceSynchronize=lambda: None),
)

# What CuPy shares with NumPy, as far as the book needs it. `empty_like` is left out: see `empty`.
_NUMPY = """
    abs allclose arange array array_equal asarray ascontiguousarray bool_ concatenate dtype eye
    float32 float64 full full_like inf int32 int64 isnan linspace matmul max mean min nan ndarray
    ones ones_like pi sqrt sum uint32 uint64 uint8 zeros zeros_like
"""


class PtxBackend:
    """The part of CuPy's interface that the book uses, without a GPU."""

    RawModule, RawKernel = RawModule, RawKernel
    cuda = _CUDA
    empty = staticmethod(_poisoned)

    def __init__(self):
        for name in _NUMPY.split():
            setattr(self, name, getattr(np, name))

    @staticmethod
    def asnumpy(array) -> np.ndarray:
        """A copy, as from a GPU."""
        return np.array(array)

    def __getattr__(self, name: str):
        raise AttributeError(
            f"cp.{name} is not covered without a GPU: here `cp` is a small stand-in for CuPy that "
            f"runs kernels on the PTX machine. It has {', '.join(sorted(vars(self)))}, empty, "
            "asnumpy, RawModule, RawKernel and cuda. For the rest use NumPy, or a GPU."
        )

    def __repr__(self) -> str:
        return "<cp: NumPy arrays and the PTX machine (no GPU here)>"


def _cupy_or(stand_in: PtxBackend):
    if gpu_available():
        import cupy

        return cupy
    return stand_in


ptx = (
    PtxBackend()
)  # also there on a machine with a GPU: a kernel that may be wrong runs on it first
cp = _cupy_or(ptx)
