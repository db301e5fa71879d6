"""How fast the PTX machine runs the book's kernels, on this machine, one core.

    python benchmarks/ptx_machine.py [N ...]        (default: 256 512)

For every kernel: seconds with bounds checks on (the minimum of three runs, compilation left out),
the same with counters, and lane-instructions (PTX instructions times active lanes) a second.
"""

import sys
import time

import numpy as np

from sgemm_lab.ladder import ladder
from sgemm_lab.run.backend import ARCH
from sgemm_lab.run.nvrtc import compile_ptx
from sgemm_lab.run.profile import arguments
from sgemm_lab.simt import host
from sgemm_lab.simt.counters import Tally

REPEATS = 3


def measure(variant, n: int, counted: bool) -> tuple[float, int]:
    """(fastest run in seconds, lane-instructions of one run; 0 where not counted)."""
    step = variant.step
    ptx = compile_ptx(step.source, variant.options, ARCH, step.filename).text
    loaded, args, best, lanes = (
        host.load(ptx, step.source, step.filename),
        arguments(n, n, n),
        1e9,
        0,
    )
    for _ in range(REPEATS):
        watch = Tally() if counted else None
        launch = loaded.launch(step.function, variant.grid(n, n), variant.block, args, watch=watch)
        began = time.perf_counter()
        launch.run()
        best = min(best, time.perf_counter() - began)
    if counted:
        sizes = [sum(classes.values()) for classes in launch.program.classes]
        lanes = sum(count * sizes[at] for at, count in watch.lanes.items())
    assert np.isfinite(args[-1]).all()
    return best, lanes


def spread(step) -> list:
    """The default variant, and one for each other value of each macro."""
    if step.function is None:
        return []
    others = [
        step(**{m.name: c})
        for m in step.macros
        for c in m.choices
        if c != m.default and not step.problem(**{m.name: c})
    ]
    return [step(), *others]


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or [256, 512]
    print(f"{'kernel':<46}{'N':>6}{'seconds':>9}{'counted':>9}{'lane-instr/s':>15}")
    for step in ladder:
        for variant in spread(step):
            for n in sizes:
                plain, _ = measure(variant, n, counted=False)
                counted, lanes = measure(variant, n, counted=True)
                print(f"{variant.key:<46}{n:>6}{plain:>9.3f}{counted:>9.3f}{lanes / plain:>15,.0f}")


if __name__ == "__main__":
    main()
