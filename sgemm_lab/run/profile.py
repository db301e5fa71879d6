"""One launch on the PTX machine, counted and examined. With or without a GPU the same comes out."""

import argparse
import html
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np

from sgemm_lab.ladder import Step, Variant, as_shape, as_variant, ladder
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ARCH, progress, ptx
from sgemm_lab.run.launch import bind
from sgemm_lab.simt import host
from sgemm_lab.simt.accesses import Order, Recorder, WarpAccess
from sgemm_lab.simt.counters import WAVEFRONT, Counters, Tally
from sgemm_lab.simt.machine import Fault, Launch, caught
from sgemm_lab.simt.sanitizer import (
    Finding,
    Sanitizer,
    differing,
    of_fault,
    order_finding,
    order_sensitive,
    other_orders,
    unset,
    unset_finding,
)  # fmt: skip

OTHER_LEFTOVERS = 0x7F, 0xFE  # as floats, 3e38 and -2e38; the first run has NaN, lost in a maximum
MOST_BYTES = 1 << 30  # of the three matrices that profile_variant makes

_LABELS = {
    "ffma": "multiply-adds (FFMA) of threads",
    "instructions": "PTX instructions of warps",
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
    "barriers": "barrier arrivals of warps",
}


@dataclass(frozen=True)
class Profile:
    """What one launch did. `.counters` holds the exact counts as the chip executes the kernel,
    `.written` the same as the PTX has them, before the assembler merges loads and stores;
    `.findings` what is wrong (None: nobody looked), `.seconds` how long this took here.

    After a fault the counts are what they were when the launch stopped. The seconds are those of
    the PTX machine and say nothing about a GPU.
    """

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: Counters
    written: Counters
    seconds: float = field(compare=False)
    findings: tuple[Finding, ...] | None = None
    array_bytes: int = 0  # of all arrays the kernel was given
    lines: Mapping = field(default_factory=dict, repr=False)  # as Tally.lines has them
    fault: Fault | None = field(default=None, compare=False, repr=False)  # in which it ended

    @property
    def flop_per_dram_byte(self) -> float:
        """FLOP for each byte of the arrays: as if DRAM moved every array once."""
        return self.counters.flops / self.array_bytes if self.array_bytes else 0.0

    @property
    def flop_per_shared_byte(self) -> float:
        """FLOP for each byte that shared memory could have moved: a wavefront is 128 bytes."""
        count = self.counters
        wavefronts = count.shared_load_wavefronts + count.shared_store_wavefronts
        return count.flops / (WAVEFRONT * wavefronts) if wavefronts else 0.0

    def rows(self) -> list[tuple[str, int]]:
        """(label, count) of every counter that is not zero."""
        return [
            (_LABELS[f.name], getattr(self.counters, f.name))
            for f in fields(Counters)
            if f.name in _LABELS and getattr(self.counters, f.name)
        ]

    def compare(self, other: "Profile"):
        """This launch's counters beside another's, as a table."""
        from sgemm_lab.show import charts  # pictures build on profiles, not the other way round

        return charts.moves((self.name, self), (other.name, other))

    def __repr__(self) -> str:
        rows = [(label, f"{count:,}") for label, count in self.rows()]
        wide, digits = (max((len(row[n]) for row in rows), default=0) for n in (0, 1))
        head = f"{self.name}: grid {self.grid}, block {self.block}"
        counts = (f"  {label:<{wide}}  {count:>{digits}}" for label, count in rows)
        return "\n".join([head, *counts, *(f"  {line}" for line in self._said())])

    def _said(self) -> list[str]:
        """The findings, a line each."""
        if self.findings is None:
            return []
        times = (f" ({found.count:,} times)" if found.count > 1 else "" for found in self.findings)
        return [
            f"{found.kind}: {found.message}{often}"
            for found, often in zip(self.findings, times, strict=True)
        ] or ["no findings"]

    def _repr_html_(self) -> str:
        left, right = ('<td style="text-align:left">', '<td style="text-align:right">')
        rows = "".join(
            f"<tr>{left}{label}</td>{right}{count:,}</td></tr>" for label, count in self.rows()
        )
        head = f"{self.name}: grid {self.grid}, block {self.block}"
        said = "".join(f"<li>{html.escape(line)}</li>" for line in self._said())
        return f"<table><caption>{head}</caption>{rows}</table>{said and f'<ul>{said}</ul>'}"


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
    sanitize: bool = True,
) -> Profile:
    """Run one launch on the PTX machine, count what it does and find what is wrong with it.

    code: CUDA C++; name: the kernel, also a template instantiation such as "tiled<16>";
    args: NumPy or CuPy arrays (written to, as by a real launch) and NumPy scalars; options: as for
    NVRTC, "-DTILE=16"; shared_mem: bytes of dynamic shared memory; sanitize: look for races and
    other mistakes too. A kernel whose result may depend on the order of warps, or on variables that
    nobody set, is then run again, on copies.
    Raises CompileError, TypeError and ValueError before anything runs; without sanitize, Fault
    where the kernel leaves its arrays, which is a finding otherwise.
    """
    compiled = nvrtc.compile_ptx(code, options, arch, filename, (name,) if "<" in name else ())
    loaded = host.load(compiled.text, code, filename)
    lowered = compiled.names.get(name, name)
    local = [_to_host(arg) for arg in args]
    tally, sanitizer = Tally(), Sanitizer(code, options)
    prepare = partial(
        loaded.launch, lowered, grid, block, shown=name, shared_mem=shared_mem,
        shared_limit=1 << 20,
    )  # fmt: skip
    launch = prepare(local, watch=(tally, sanitizer) if sanitize else tally)
    began = time.perf_counter()
    again = _Again(launch, partial(prepare, local)) if sanitize else None
    with progress(name) as step:
        fault = caught(partial(launch.run, step))
    if fault and not sanitize:
        raise fault
    if fault:
        sanitizer.fault(fault)
    findings = again.findings(sanitizer.findings, fault) if sanitize else None
    seconds = time.perf_counter() - began
    for arg, array in zip(args, local, strict=True):
        if array is not arg and getattr(arg, "ndim", 0):
            arg.set(array)
    executed, written = (tally.result(launch.program, written=view) for view in (False, True))
    size = sum(array.nbytes for array in local if getattr(array, "ndim", 0))
    return Profile(
        name, launch.grid, launch.block, executed, written, seconds, findings, size,
        tally.lines(), fault,
    )  # fmt: skip


class _Again:
    """A launch again, where that may change the result: with other bits in variables that nobody
    set; with warps and blocks in other orders."""

    def __init__(self, launch: Launch, prepare: Callable[..., Launch]):
        self.launch, self.prepare = launch, prepare
        self.order, self.unset = order_sensitive(launch.program), unset(launch.program)
        self.before = None if self.order is self.unset is None else self._memory()

    def _memory(self) -> dict[str, np.ndarray]:
        regions = self.launch.memory.regions.values()
        return {region.name: region.data.copy() for region in regions}

    def _restore(self, memory: dict[str, np.ndarray]) -> None:
        for region in self.launch.memory.regions.values():
            if region.writeable:
                region.data[:] = memory[region.name]

    def findings(self, first: tuple[Finding, ...], fault: Fault | None) -> tuple[Finding, ...]:
        """The findings of the first run, which may have ended in a fault, and of others."""
        if self.before is None:
            return first
        after = self._memory()
        try:
            first = (*self._leftovers(after, fault), *first)
            return first or (*self._orders(after),)
        finally:
            self._restore(after)

    def _leftovers(self, after, fault: Fault | None) -> Iterator[Finding]:
        if self.unset is None:
            return
        for leftover in OTHER_LEFTOVERS:
            self._restore(self.before)
            other = caught(self.prepare(leftover=leftover).run)
            element = None if fault or other else differing(self.launch, after)
            if element or bool(fault) != bool(other):
                yield unset_finding(self.launch, self.unset, element)
                return

    def _orders(self, after) -> Iterator[Finding]:
        if self.order is None:
            return
        for turns in other_orders(self.launch.threads):
            self._restore(self.before)
            again = self.prepare(turns=turns, blocks=self.launch.numbers[::-1])
            if fault := caught(again.run):
                yield of_fault(fault, ", when warps and blocks run in another order")
                return
            if element := differing(self.launch, after):
                yield order_finding(self.launch, self.order, element)
                return


def profile_variant(variant: Variant | Step, M: int, N: int, K: int) -> Profile:
    """One product of M×K and K×N random matrices by a kernel of the ladder (alpha 1, beta 0).

    Raises ValueError for sizes with nothing to launch, or of more than MOST_BYTES in all.
    """
    variant = as_variant(variant)
    M, N, K = as_shape((M, N, K))
    if M == 0 or N == 0:
        raise ValueError(f"M={M}, N={N}: C has no elements, so there is nothing to launch.")
    if (needed := 4 * (M * K + K * N + M * N)) > MOST_BYTES:
        raise ValueError(
            f"M={M}, N={N}, K={K}: the matrices take {needed / 2**30:,.1f} GiB; here they may take "
            f"{MOST_BYTES >> 30}. A smaller product shows the same: counts grow evenly with it."
        )
    step = variant.step
    return profile(
        step.source,
        step.function,
        variant.grid(M, N),
        variant.block,
        bind(step, *arguments(M, N, K)),
        options=variant.options,
        shared_mem=step.dynamic_bytes,
        filename=step.filename,
    )


def arguments(M: int, N: int, K: int) -> tuple:
    """What every kernel of the ladder takes, for C = A·B of random matrices: (M, N, K, alpha, A, B,
    beta, C) with alpha 1, beta 0, and nothing written to C yet. The same at every call."""
    rng = np.random.default_rng(0)
    A, B = (rng.random(shape, dtype=np.float32) - 0.5 for shape in ((M, K), (K, N)))
    C = ptx.empty((M, N), np.float32)
    return np.int32(M), np.int32(N), np.int32(K), np.float32(1), A, B, np.float32(0), C


def accesses(
    variant: Variant | Step, M: int, N: int, K: int, block: int = 0, warp: int = 0,
    limit: int = 1000,
) -> list[WarpAccess]:  # fmt: skip
    """What one warp of one block touches, instruction by instruction, as the PTX has it, in the
    product that `profile_variant` runs, up to `limit` accesses; `block` is the linear number of a
    block of the grid."""
    recorder = Recorder(block, warp, limit)
    _watch(variant, M, N, K, [block], recorder)
    return recorder.found


def executed_accesses(
    variant: Variant | Step, M: int, N: int, K: int, warps: Sequence[tuple[int, int]]
) -> list[list[WarpAccess]]:
    """What each of these warps (block, warp) touches in one such product, as the chip executes it:
    neighbours merged as the assembler merges them."""
    recorders = [Recorder(block, warp, limit=100_000, executed=True) for block, warp in warps]
    _watch(variant, M, N, K, sorted({block for block, _ in warps}), *recorders)
    return [recorder.found for recorder in recorders]


def order(
    variant: Variant | Step, M: int, N: int, K: int, block: int = 0, warp: int = 0
) -> list[str]:
    """The classes of PTX instructions and the barriers that one warp of one block executes, in
    order, in the product that `profile_variant` runs: ["load.global", "ffma", "barrier", …]."""
    watcher = Order(block, warp)
    _watch(variant, M, N, K, [block], watcher)
    return watcher.found


def _watch(
    variant: Variant | Step, M: int, N: int, K: int, blocks: Sequence[int], *watchers
) -> None:
    """Runs some blocks of the product that `profile_variant` runs, `watchers` watching."""
    variant = as_variant(variant)
    step = variant.step
    ptx = nvrtc.compile_ptx(step.source, variant.options, ARCH, step.filename).text
    host.load(ptx, step.source, step.filename).launch(
        step.function,
        variant.grid(M, N),
        variant.block,
        bind(step, *arguments(M, N, K)),
        shared_mem=step.dynamic_bytes,
        watch=watchers,
        blocks=np.array(blocks),
    ).run()


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
