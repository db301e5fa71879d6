"""Times a reader's kernel on this machine's GPU, in a process of its own.

A wild address ends a process's use of the GPU, and an endless loop never gives it back. So the
notebook's kernel starts another Python, which measures as `bench` does, beside a step of the ladder
and cuBLAS, and is ended when it takes too long.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from sgemm_lab.ladder import ladder, own
from sgemm_lab.learn.judge import Exercise, Verdict
from sgemm_lab.paths import ROOT

N = 1024  # M = N = K
SECONDS = 60
CHILD = sys.executable, "-m", "sgemm_lab.learn.timing"
_RAISED = re.compile(r"^[\w.]*(?:Error|Fault)\b.*", re.MULTILINE)  # of several the first counts


def timed(
    verdict: Verdict,
    exercise: Exercise,
    code: str,
    child: Sequence[str] = CHILD,
    seconds: float = SECONDS,
) -> Verdict:
    """The verdict with what the GPU took, or with what became of the process that measured.

    `child` reads a job from its standard input and writes the runs of a `Bench` as its last line.
    """
    problem = exercise.problem
    job = {
        "own": [f"{code}\n{exercise.rest}", problem.function, problem.block, problem.tile],
        "step": exercise.step,
    }
    return replace(verdict, time=_told(job, child, seconds))


def _told(job: dict, child: Sequence[str], seconds: float) -> str:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # Colab installs nothing
    try:
        done = subprocess.run(
            child, input=json.dumps(job), capture_output=True, text=True, timeout=seconds,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        runs = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else []
    except subprocess.TimeoutExpired:
        return f"On the GPU it was not done after {seconds:g} seconds, and was ended."
    except (OSError, ValueError, IndexError) as error:
        return f"It could not be timed: {error}"
    if not runs:
        said = _RAISED.search(done.stderr) or re.search(r".+\s*$", done.stderr)
        why = said[0].strip() if said else "it says nothing more"
        return (
            f"On the GPU its process ended with exit code {done.returncode}: {why.rstrip('.')}. "
            "This notebook goes on."
        )
    names = ["your kernel", *[f"step {run['step']}" for run in runs[1:]]]
    times = [f"{name} {run['ms']['median']:.3g} ms" for name, run in zip(names, runs, strict=True)]
    times.append(f"cuBLAS {runs[0]['cublas_ms']['median']:.3g} ms")
    return f"On this GPU at N = {N}: {', '.join(times)}"


def main() -> int:
    """The child: measures the job on standard input."""
    from sgemm_lab.measure.bench import bench

    job = json.load(sys.stdin)
    code, function, block, tile = job["own"]
    kernels = [own(code, function, tuple(block), tuple(tile))]
    kernels += [ladder[job["step"]]()] if job["step"] else []
    print(json.dumps(bench(kernels, [N]).runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
