"""One launch on the PTX machine, counted. With or without a GPU the same numbers come out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from ..simt import host
from ..simt.counters import Counters, Tally
from . import nvrtc
from .backend import ARCH, progress

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
        rows = self.rows()
        wide, digits = (
            max((len(f(row)) for row in rows), default=0)
            for f in (lambda r: r[0], lambda r: f"{r[1]:,}")
        )
        head = f"{self.name}: grid {self.grid}, block {self.block}"
        return "\n".join(
            [head, *(f"  {label:<{wide}}  {count:>{digits},}" for label, count in rows)]
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left">{label}</td><td style="text-align:right">{count:,}</td></tr>'
            for label, count in self.rows()
        )
        return f"<table><caption>{self.name}: grid {self.grid}, block {self.block}</caption>{rows}</table>"


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


def _to_host(arg):
    """A CuPy array as a NumPy array; anything else as it is."""
    return arg.get() if type(arg).__module__.split(".")[0] == "cupy" and arg.ndim else arg
