"""How much faster the PTX machine is than Numba's CUDA simulator, on an equal kernel.

    python -m venv ../numba && ../numba/bin/pip install numba
    python benchmarks/numba_simulator.py --numba ../numba/bin/python [--repeats 5]

The kernel is step 2 with 16×16 tiles, M = N = K = 64: once as kernels/02_tiled.cu on the PTX
machine with all it counts and checks, once line for line in Python under NUMBA_ENABLE_CUDASIM=1,
where every CUDA thread is a Python thread. The two take turns in one run, each in a process that
lives as long as the run, and both results are compared with NumPy's.

Numba stays out of requirements.txt, and in an environment of its own: nothing in the book needs
it, and it would hold NumPy back. The time of ours is that of the whole call, random matrices
included, after a first one that compiled the kernel; Numba's simulator has nothing to compile.
Beside the time on the wall stands that on the cores, which other work on the machine disturbs less.
Exit code 1: less than 600 times as fast.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np

N, TILE = 64, 16
TARGET = 600


def simulate() -> None:
    """For each line on stdin: multiplies once in Numba's simulator; prints the seconds that passed,
    and those that its threads had a core."""
    global cuda  # the simulator puts its own in place of the module's global
    from numba import cuda

    @cuda.jit
    def tiled(M, N, K, alpha, A, B, beta, C):
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx
        As = cuda.shared.array((TILE, TILE), np.float32)
        Bs = cuda.shared.array((TILE, TILE), np.float32)
        total = np.float32(0)
        for k0 in range(0, K, TILE):
            As[ty, tx] = A[row, k0 + tx] if row < M and k0 + tx < K else 0
            Bs[ty, tx] = B[k0 + ty, col] if k0 + ty < K and col < N else 0
            cuda.syncthreads()
            for k in range(TILE):
                total += As[ty, k] * Bs[k, tx]
            cuda.syncthreads()
        if row < M and col < N:
            C[row, col] = alpha * total if beta == 0 else alpha * total + beta * C[row, col]

    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal((N, N), dtype=np.float32) for _ in "AB")
    for _ in sys.stdin:
        C = np.full((N, N), np.nan, np.float32)
        began = _clocks()
        tiled[(N // TILE, N // TILE), (TILE, TILE)](N, N, N, 1.0, A, B, 0.0, C)
        seconds = _clocks() - began
        assert np.allclose(C, A @ B, rtol=0, atol=1e-3), "Numba's simulator is wrong"
        print(*seconds, flush=True)


def ours() -> np.ndarray:
    """The same two times of one profile on the PTX machine."""
    from sgemm_lab.ladder import ladder
    from sgemm_lab.run.profile import profile_variant

    began = _clocks()
    profile = profile_variant(ladder[2](TILE=TILE), N, N, N)
    seconds = _clocks() - began
    assert profile.counters.ffma == N**3, "the PTX machine did not do N³ multiply-adds"
    return seconds


def _clocks() -> np.ndarray:
    """Seconds: of the clock on the wall, and of all cores together that this process used."""
    return np.array([time.perf_counter(), time.process_time()])


def check() -> None:
    """Raises AssertionError unless the PTX machine's product is right."""
    from sgemm_lab.ladder import ladder
    from sgemm_lab.run.backend import ptx
    from sgemm_lab.run.launch import launch

    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal((N, N), dtype=np.float32) for _ in "AB")
    C = launch(ladder[2](TILE=TILE), A, B, on=ptx)
    assert np.allclose(C, A @ B, rtol=0, atol=1e-3), "the PTX machine is wrong"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numba", metavar="PYTHON", help="a Python that has Numba")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.simulate:
        simulate()
        return 0
    if not given.numba:
        parser.error("--numba PYTHON is missing: see the first two lines of the description")
    check()
    ours()  # compiles
    simulator = subprocess.Popen(
        [given.numba, __file__, "--simulate"], text=True,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    times = []
    print(
        f"{'run':>6}{'Numba':>10}{'(cores)':>10}{'ours':>10}{'(cores)':>10}{'ratio':>8}{'(cores)':>9}"
    )
    with simulator:
        for run in range(given.repeats):
            print(file=simulator.stdin, flush=True)
            line = simulator.stdout.readline()
            if not line:
                print(f"{given.numba} could not run Numba's simulator", file=sys.stderr)
                return 2
            times.append([np.array(line.split(), float), ours()])
            _show(run + 1, *times[-1])
        simulator.stdin.close()
    middle = np.median(times, axis=0)
    _show("median", *middle)
    ratio = middle[0, 0] / middle[1, 0]
    print(f"{ratio:.0f} times as fast as Numba's simulator, by the medians; wanted: {TARGET}")
    return 0 if ratio >= TARGET else 1


def _show(run: object, numba: np.ndarray, ours: np.ndarray) -> None:
    """One line: seconds for Numba, milliseconds for ours, both ratios."""
    cells = [*(f"{t:8.2f} s" for t in numba), *(f"{1e3 * t:7.1f} ms" for t in ours)]
    print(f"{run:>6}{''.join(cells)}{numba[0] / ours[0]:8.0f}{numba[1] / ours[1]:9.0f}")


if __name__ == "__main__":
    sys.exit(main())
