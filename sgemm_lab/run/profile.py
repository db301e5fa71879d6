"""One launch on the PTX machine, counted. With or without a GPU the same numbers come out."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from sgemm_lab.ladder import Step, Variant, ladder
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ARCH, progress
from sgemm_lab.simt import host
from sgemm_lab.simt.counters import Counters, Tally
from sgemm_lab.simt.machine import Fault

_LABELS = {
    "ffma": "multiply-adds (FFMA), per thread",
    "instructions": "PTX instructions, per warp",
    "global_load_requests": "global load requests",
    "global_load_sectors": "global sectors loaded",
    "global_store_requests": "global store requests",
    "global_store_sectors": "global sectors stored",
    "copy_requests": "asynchronous copy requests",
    "copy_sectors": "asynchronously copied sectors",
    "shared_load_instructions": "shared loads",
    "shared_load_wavefronts": "shared load wavefronts",
    "shared_load_conflicts": "shared load bank conflicts",
    "shared_store_instructions": "shared stores",
    "shared_store_wavefronts": "shared store wavefronts",
    "shared_store_conflicts": "shared store bank conflicts",
    "barriers": "barriers, per warp",
}


@dataclass(frozen=True)
class Profile:
    """What one launch did. `.counters` holds the exact counts, `.seconds` how long this took here.

    The seconds are those of the PTX machine and say nothing about a GPU.
    """

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: Counters
    seconds: float = field(compare=False)

    def rows(self) -> list[tuple[str, int]]:
        """(label, count) of every counter that is not zero."""
        return [
            (_LABELS[f.name], getattr(self.counters, f.name))
            for f in fields(Counters)
            if f.name in _LABELS and getattr(self.counters, f.name)
        ]

    def __repr__(self) -> str:
        rows = [(label, f"{count:,}") for label, count in self.rows()]
        wide, digits = (max((len(row[n]) for row in rows), default=0) for n in (0, 1))
        head = f"{self.name}: grid {self.grid}, block {self.block}"
        return "\n".join(
            [head, *(f"  {label:<{wide}}  {count:>{digits}}" for label, count in rows)]
        )

    def _repr_html_(self) -> str:
        left, right = ('<td style="text-align:left">', '<td style="text-align:right">')
        rows = "".join(
            f"<tr>{left}{label}</td>{right}{count:,}</td></tr>" for label, count in self.rows()
        )
        head = f"{self.name}: grid {self.grid}, block {self.block}"
        return f"<table><caption>{head}</caption>{rows}</table>"


def profile(
    code: str,
    name: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence,
    *,
    options: Sequence[str] = (),
    arch: str = ARCH,
    shared_mem: int = 0,
    filename: str = "kernel.cu",
) -> Profile:
    """Run one launch on the PTX machine and count what it does.

    code: CUDA C++; name: the kernel, also a template instantiation such as "tiled<16>";
    args: NumPy or CuPy arrays (written to, as by a real launch) and NumPy scalars; options: as for
    NVRTC, "-DTILE=16"; shared_mem: bytes of dynamic shared memory.
    Raises CompileError, TypeError and ValueError before anything runs, Fault where the kernel
    leaves its arrays.
    """
    ptx = nvrtc.compile_ptx(code, options, arch, filename, (name,) if "<" in name else ())
    loaded = host.load(ptx.text, code, filename)
    lowered = ptx.names.get(name, name)
    local = [_to_host(arg) for arg in args]
    tally = Tally()
    launch = loaded.launch(
        lowered, grid, block, local, shown=name, shared_mem=shared_mem,
        shared_limit=1 << 20, watch=tally,
    )  # fmt: skip
    began = time.perf_counter()
    with progress(name) as step:
        launch.run(step)
    seconds = time.perf_counter() - began
    for arg, array in zip(args, local, strict=True):
        if array is not arg and getattr(arg, "ndim", 0):
            arg.set(array)
    return Profile(name, launch.grid, launch.block, tally.result(launch.program), seconds)


def profile_variant(variant: Variant | Step, M: int, N: int, K: int) -> Profile:
    """One product of M×K and K×N random matrices by a kernel of the ladder (alpha 1, beta 0)."""
    variant = variant() if isinstance(variant, Step) else variant
    rng, step = np.random.default_rng(0), variant.step
    A, B = (rng.standard_normal(shape, dtype=np.float32) for shape in ((M, K), (K, N)))
    C = np.empty((M, N), np.float32)
    sizes = np.int32(M), np.int32(N), np.int32(K)
    return profile(
        step.source,
        step.function,
        variant.grid(M, N),
        variant.block,
        (*sizes, np.float32(1), A, B, np.float32(0), C),
        options=variant.options,
        filename=step.filename,
    )


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab profile 2 TILE=16 --size 256 256 256`; exit code 2 if misasked."""
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab profile", description="Count what kernels do, on the PTX machine."
    )
    parser.add_argument("what", nargs="+", help="steps (2 or 02_tiled) and macros (TILE=16)")
    parser.add_argument("--size", type=int, nargs=3, default=(256, 256, 256), metavar=tuple("MNK"))
    given = parser.parse_args(argv)
    try:
        for variant in ladder.asked(given.what):
            if variant.step.function:
                print(f"{variant.key}\n{profile_variant(variant, *given.size)}", flush=True)
            else:
                print(f"{variant.key}: a library call, nothing of ours to count")
    except (KeyError, ValueError, ImportError, Fault) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    return 0


def _to_host(arg):
    """A CuPy array as a NumPy array; anything else as it is."""
    return arg.get() if type(arg).__module__.split(".")[0] == "cupy" and arg.ndim else arg
