"""Random programs on a GPU and on the PTX machine: the same bits?

    python benchmarks/fuzz_gpu.py [--first SEED] [--count N]        (default: seeds 0 to 499)

The programs are those of tests/fuzz_machine.py. For the GPU they are compiled to a cubin, not by
CuPy, which adds -ftz=true. Odd seeds run from PTX for compute_90, even ones for compute_75.
Needs a GPU; exits 1 where a result differs.
"""

import argparse
import multiprocessing
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fuzz_machine as fuzz  # noqa: E402
import numpy as np  # noqa: E402

LANES = 1 << 15


def ours(seed: int) -> tuple[int, list[np.ndarray] | str]:
    """The PTX machine's results of a program, or why it has none."""
    program = fuzz.Program(seed)
    arch = "compute_90" if seed % 2 else "compute_75"
    try:
        return seed, fuzz.run_ptx(program, program.text(), arch, LANES)
    except Exception as error:  # whatever it is, it is a finding
        return seed, f"{type(error).__name__}: {error}"


def gpu(seed: int, arch: str) -> list[np.ndarray]:
    """The GPU's results of a program."""
    import cupy

    from sgemm_lab.run.nvrtc import compile_cubin

    program = fuzz.Program(seed)
    text = fuzz.PRELUDE + program.text()
    module = cupy.cuda.function.Module()
    module.load(bytes(compile_cubin(text, ("-fmad=false",), arch, "fuzz.cu").image))
    args, outs = fuzz.inputs(program)
    given = [cupy.asarray(a) if isinstance(a, np.ndarray) and a.ndim else a for a in args]
    outs = [cupy.asarray(out) for out in outs]
    kernel = module.get_function(f"k{seed}")
    kernel(program.grid, program.block, (*given, *outs), shared_mem=program.dynamic_bytes)
    return [out.get() for out in outs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    with multiprocessing.get_context("fork").Pool() as pool:  # before CUDA is initialised
        mine = dict(pool.imap_unordered(ours, seeds, chunksize=4))
    import cupy

    arch, equal = f"sm_{cupy.cuda.Device().compute_capability}", 0
    for seed in seeds:
        if isinstance(mine[seed], str):
            print(f"seed {seed}: {mine[seed]}")
            continue
        pairs = zip(fuzz.OUTS, mine[seed], gpu(seed, arch), strict=True)
        if wrong := [name for name, a, b in pairs if not fuzz.same(a, b)]:
            print(f"seed {seed}: {', '.join(wrong)} differ")
        else:
            equal += 1
    print(f"{equal} of {len(seeds)} programs give the same bits on {arch} and the PTX machine")
    return int(equal < len(seeds))


if __name__ == "__main__":
    sys.exit(main())
