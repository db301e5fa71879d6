"""One kernel in a process that has never used the GPU: what each step takes, as JSON.

    echo '{"code": …, "options": […], "name": …, "grid": […], "block": […], "N": …}' |
        python benchmarks/cold_start.py

Milliseconds by the host's clock unless the name says events. `r1_study.py` starts it many times,
with CuPy's folder of compiled kernels (CUPY_CACHE_DIR) empty or filled. Plain CuPy, nothing of
ours.
"""

import json
import sys
import time
from statistics import median

import numpy as np

FIRST = 20  # launches that are listed one by one
WARM_MS = 300  # launches go on for this long before the steady state is looked at
STEADY = 50


def main() -> None:
    asked = json.load(sys.stdin)
    N = asked["N"]
    host = [np.ones((N, N), np.float32) for _ in range(3)]
    took, last = {}, time.perf_counter()

    def done(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        took[name], last = 1e3 * (now - last), now

    import cupy as cp

    done("import_ms")
    cp.cuda.runtime.free(0)  # the first call of CUDA: it makes the context
    done("context_ms")
    A, B, C = map(cp.asarray, host)
    cp.cuda.Device().synchronize()
    done("arrays_ms")
    module = cp.RawModule(code=asked["code"], options=tuple(asked["options"]))
    kernel = module.get_function(asked["name"])
    done("module_ms")

    grid, block = tuple(asked["grid"]), tuple(asked["block"])
    size, one, zero = np.int32(N), np.float32(1), np.float32(0)
    start, stop = cp.cuda.Event(), cp.cuda.Event()

    def launch() -> tuple[float, float]:
        """Milliseconds by the host's clock until the result is there, and by events."""
        began = time.perf_counter()
        start.record()
        kernel(grid, block, (size, size, size, one, A, B, zero, C))
        stop.record()
        stop.synchronize()
        return 1e3 * (time.perf_counter() - began), cp.cuda.get_elapsed_time(start, stop)

    first = [launch() for _ in range(FIRST)]
    until = time.perf_counter() + 1e-3 * WARM_MS
    while time.perf_counter() < until:
        launch()
    steady = [launch() for _ in range(STEADY)]
    if not (cp.asnumpy(C) == N).all():
        raise SystemExit(f"{asked['name']} is wrong at N = {N}")
    took["launch_ms"] = [each for each, _ in first]
    took["launch_events_ms"] = [each for _, each in first]
    took["steady_ms"] = median(each for each, _ in steady)
    took["steady_events_ms"] = median(each for _, each in steady)
    print(json.dumps(took))


if __name__ == "__main__":
    main()
