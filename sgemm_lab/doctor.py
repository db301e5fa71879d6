"""What this machine can run and what is missing, in plain words.

`look` gathers facts, `diagnose` turns facts into a Report; only `look` touches the machine.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from sgemm_lab.run import archive, nvrtc

PYTHON = (3, 11)  # the oldest that the book runs on
CAPABILITY = (7, 5)  # the oldest GPU: a T4
T4 = "Runtime > Change runtime type > T4 GPU"  # in Colab's menu
NVRTC = {"cupy-cuda12x": "pip install nvidia-cuda-nvrtc-cu12==12.9.86"}  # else CuPy's own extra

WAYS = {
    "gpu": "Kernels run on this GPU with CuPy; bench times them.",
    "ptx": "Kernels run on the PTX machine, compiled by NVRTC. Everything works but bench: charts "
    "show recorded runs.",
    "archive": "The book's kernels run on the PTX machine, compiled beforehand with every setting; "
    "your own kernels and exercises need NVRTC.",
    "pages": "Kernels cannot run on this GPU yet. SGEMM_LAB_BACKEND=ptx runs the book's on the PTX "
    "machine.",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver reports it."""

    name: str
    capability: tuple[int, int]
    driver: str
    trial: str = ""  # what failed when CuPy itself was tried on it; empty if nothing


@dataclass(frozen=True)
class Facts:
    """What was found. A version that is None was not found."""

    python: tuple[int, int, int]
    system: str  # as platform.system() says it
    cupy: str | None  # "14.2.0"
    package: str  # the distribution that brought it: "cupy-cuda12x"
    nvrtc: str | None
    gpu: Gpu | None
    driver: bool  # whether an NVIDIA driver is installed
    colab: bool
    forced: bool  # SGEMM_LAB_BACKEND=ptx
    archive: str | None = None  # the version of NVRTC that compiled the book's kernels beforehand


@dataclass(frozen=True)
class Report:
    """`way` is one of WAYS; `missing` pairs what is missing with what to do about it."""

    facts: Facts
    way: str
    missing: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        facts = self.facts
        rows = {
            "Python": ".".join(map(str, facts.python)) + (" on Colab" if facts.colab else ""),
            "CuPy": f"{facts.cupy} ({facts.package})" if facts.cupy else "not installed",
            "NVRTC": facts.nvrtc
            or f"not found; {facts.archive} compiled the book's kernels beforehand",
            "GPU": _gpu(facts.gpu) if facts.gpu else "none that CUDA can use",
        }
        lines = [f"{name:8}{value}" for name, value in rows.items()]
        lines += ["", WAYS[self.way]]
        for what, remedy in self.missing:
            lines += ["", f"Missing: {what}", f"    {remedy}"]
        return "\n".join(lines if self.missing else [*lines, "Nothing is missing."])

    __repr__ = __str__


def doctor() -> Report:
    """Look at this machine. Print the report, or end a cell with it."""
    return diagnose(look())


def card() -> str:
    """One line for a notebook: what runs the kernels here, and on Colab how to get a GPU for them.
    It differs between machines."""
    report = doctor()
    facts = report.facts
    python = "Python " + ".".join(map(str, facts.python))
    compiler = f"NVRTC {facts.nvrtc}" if facts.nvrtc else "no NVRTC"
    runs = {
        "gpu": f"Kernels run on {_gpu(facts.gpu)}" if facts.gpu else "",
        "ptx": "Kernels run on the PTX machine, without a GPU",
        "archive": "The book's kernels run on the PTX machine, compiled beforehand",
        "pages": "Kernels cannot run here; doctor() says what is missing",
    }
    more = [f"for a GPU choose {T4}"] if facts.colab and facts.gpu is None else []
    return " · ".join([runs[report.way], compiler, python, *more])


def diagnose(facts: Facts) -> Report:
    """What the facts mean: the first remedy to take comes first."""
    gpu, mac = facts.gpu, facts.system == "Darwin"
    found = f"Python {facts.python[0]}.{facts.python[1]}"
    checks = (
        (facts.python[:2] < PYTHON,
         f"the book needs Python {PYTHON[0]}.{PYTHON[1]} or newer; this is {found}",
         "Install a newer Python, then make .venv anew with it."),
        (facts.cupy is None and facts.colab,
         "CuPy and NVRTC; Colab's CPU runtime has neither",
         f"Choose {T4}."),
        (facts.cupy is None and mac,
         "CuPy and NVRTC; there are no wheels of them for macOS",
         "Only your own kernels need them: try those on Colab."),
        (facts.cupy is None and not facts.colab and not mac,
         "CuPy, which holds the binding to NVRTC",
         nvrtc.INSTALL),
        (facts.cupy is not None and facts.nvrtc is None,
         "NVRTC, CUDA's compiler as a library; it needs no GPU",
         NVRTC.get(facts.package, f'pip install "{facts.package}[ctk]=={facts.cupy}"')),
        (facts.cupy is not None and gpu is None and facts.driver and not facts.forced,
         "access to the GPU: a driver is installed, but CuPy finds no GPU",
         "Run nvidia-smi and see what it says. In a container, start it with --gpus all."),
        (gpu is not None and bool(gpu.trial),
         f"something that CuPy needs on a GPU ({gpu.trial if gpu else ''}); most often CUDA's "
         "headers or cuBLAS",
         f'pip install "{facts.package}[ctk]=={facts.cupy}"'),
        (gpu is not None and gpu.capability < CAPABILITY,
         "a GPU of compute capability {}.{} or newer".format(*CAPABILITY),
         "Set SGEMM_LAB_BACKEND=ptx to run the kernels on the PTX machine instead."),
    )  # fmt: skip
    missing = tuple((what, remedy) for wrong, what, remedy in checks if wrong)
    on_gpu, compiler = gpu is not None and not facts.forced, facts.cupy and facts.nvrtc
    way = ("gpu" if compiler else "pages") if on_gpu else ("ptx" if compiler else "archive")
    return Report(facts, way, missing)


def look() -> Facts:
    """The facts about this machine. Nothing here raises for want of CuPy, NVRTC or a GPU."""
    cupy, package = _cupy()
    return Facts(
        python=sys.version_info[:3],
        system=platform.system(),
        cupy=cupy,
        package=package,
        nvrtc=nvrtc.version(),
        gpu=_look_for_gpu() if cupy else None,
        driver=shutil.which("nvidia-smi") is not None,
        colab="COLAB_RELEASE_TAG" in os.environ,
        forced=os.environ.get("SGEMM_LAB_BACKEND") == "ptx",
        archive=archive.read()["nvrtc"],
    )


def main(argv: list[str] | None = None) -> int:
    """`python -m sgemm_lab doctor`: exit code 0 if nothing is missing, else 1."""
    argparse.ArgumentParser(
        prog="python -m sgemm_lab doctor",
        description="What this machine can run, and what is missing.",
    ).parse_args(argv)
    report = doctor()
    print(report)
    return 0 if report.ok else 1


def _cupy() -> tuple[str | None, str]:
    """CuPy's version and the distribution that brought it."""
    try:
        import cupy
    except Exception:  # an installation without its libraries fails in many ways
        return None, "cupy-cuda12x"
    names = (d.metadata["Name"] or "" for d in metadata.distributions())
    brought = sorted(name.lower() for name in names if name.lower().startswith("cupy"))
    return cupy.__version__, next(iter(brought), "cupy")


def _look_for_gpu() -> Gpu | None:
    import cupy

    try:
        if not cupy.cuda.is_available():
            return None
        device = cupy.cuda.Device()
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        digits = device.compute_capability
        return Gpu(name, (int(digits[:-1]), int(digits[-1])), _driver(cupy), _trial(cupy))
    except Exception as error:
        return Gpu("a GPU that CUDA cannot use", CAPABILITY, "unknown", _first_line(error))


def _driver(cupy) -> str:
    """The driver's version and the newest CUDA it runs."""
    number = cupy.cuda.runtime.driverGetVersion()
    cuda = f"CUDA {number // 1000}.{number % 1000 // 10}"
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return cuda
    return f"{said.split()[0]}, {cuda}" if said.split() else cuda


def _trial(cupy) -> str:
    """What fails when CuPy's own kernels and cuBLAS are tried; empty if nothing does."""
    try:
        ones = cupy.ones((2, 2), dtype=cupy.float32)
        return "" if float(cupy.matmul(ones, ones).sum()) == 8 else "cp.matmul gives a wrong result"
    except Exception as error:
        return _first_line(error)


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:160]


def _gpu(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"{gpu.name} (compute capability {major}.{minor}, driver {gpu.driver})"
