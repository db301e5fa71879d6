"""The doctor names the way in which one reads, what is missing, and the command that mends it."""

import dataclasses
from importlib import import_module

import pytest

from sgemm_lab.doctor import Facts, Gpu, diagnose

doctor = import_module("sgemm_lab.doctor")  # the package's name `doctor` is its function

T4 = Gpu("Tesla T4", (7, 5), "550.54, CUDA 12.4")
NO_GPU = Facts(
    (3, 11, 2), "Linux", "14.2.0", "cupy-cuda12x", "12.9.86", None, False, False, False, "12.9.86"
)
NO_CUPY = dataclasses.replace(NO_GPU, cupy=None, nvrtc=None)
WITH_GPU = dataclasses.replace(NO_GPU, gpu=T4, driver=True)


def test_without_a_gpu_nothing_is_missing():
    report = diagnose(NO_GPU)
    assert (report.way, report.ok) == ("ptx", True)
    assert str(report) == (
        "Python  3.11.2\n"
        "CuPy    14.2.0 (cupy-cuda12x)\n"
        "NVRTC   12.9.86\n"
        "GPU     none that CUDA can use\n"
        "\n"
        "Kernels run on the PTX machine, compiled by NVRTC. Everything works but bench: charts "
        "show recorded runs.\n"
        "Nothing is missing."
    )


def test_with_a_gpu_kernels_run_on_it():
    report = diagnose(WITH_GPU)
    assert (report.way, report.ok) == ("gpu", True)
    assert "Tesla T4 (compute capability 7.5, driver 550.54, CUDA 12.4)" in str(report)


@pytest.mark.parametrize(
    ("facts", "change", "way", "what", "remedy"),
    [
        (NO_GPU, {"python": (3, 9, 1)}, "ptx", "Python 3.11 or newer; this is Python 3.9",
         "Install a newer Python"),
        (NO_CUPY, {}, "archive", "CuPy, which holds the binding to NVRTC",
         "pip install cupy-cuda12x==14.2.0 nvidia-cuda-nvrtc-cu12==12.9.86"),
        (NO_CUPY, {"colab": True}, "archive",
         "Colab's CPU runtime has neither", "Runtime > Change runtime type > T4 GPU"),
        (NO_CUPY, {"system": "Darwin"}, "archive",
         "no wheels of them for macOS", "Only your own kernels need them: try those on Colab."),
        (NO_GPU, {"nvrtc": None}, "archive", "NVRTC, CUDA's compiler",
         "pip install nvidia-cuda-nvrtc-cu12==12.9.86"),
        (WITH_GPU, {"nvrtc": None}, "pages", "NVRTC, CUDA's compiler",
         "pip install nvidia-cuda-nvrtc-cu12==12.9.86"),
        (NO_GPU, {"nvrtc": None, "package": "cupy-cuda13x"}, "archive", "NVRTC",
         'pip install "cupy-cuda13x[ctk]==14.2.0"'),
        (NO_GPU, {"driver": True}, "ptx", "a driver is installed, but CuPy finds no GPU",
         "nvidia-smi"),
        (WITH_GPU, {"gpu": dataclasses.replace(T4, trial="RuntimeError: CUDA_PATH is not set")},
         "gpu", "CUDA_PATH is not set); most often CUDA's headers or cuBLAS",
         'pip install "cupy-cuda12x[ctk]==14.2.0"'),
        (WITH_GPU, {"gpu": dataclasses.replace(T4, capability=(6, 1))}, "gpu",
         "a GPU of compute capability 7.5 or newer", "SGEMM_LAB_BACKEND=ptx"),
    ],
)  # fmt: skip
def test_what_is_missing_comes_with_its_remedy(facts, change, way, what, remedy):
    report = diagnose(dataclasses.replace(facts, **change))
    assert report.way == way and not report.ok
    ((found, command),) = report.missing
    assert what in found and remedy in command
    assert f"Missing: {found}\n    {command}" in str(report)


def test_without_nvrtc_the_books_kernels_run_and_it_says_what_compiled_them():
    report = str(diagnose(dataclasses.replace(NO_CUPY, system="Darwin")))
    assert "NVRTC   not found; 12.9.86 compiled the book's kernels beforehand\n" in report
    assert "The book's kernels run on the PTX machine, compiled beforehand" in report
    assert "your own kernels and exercises need NVRTC" in report


def test_the_ptx_machine_can_be_asked_for_on_a_gpu():
    report = diagnose(dataclasses.replace(WITH_GPU, forced=True))
    assert (report.way, report.ok) == ("ptx", True)


def test_looking_at_this_machine_finds_this_python(capsys):
    report = doctor.doctor()
    assert f"{'Python':8}" + ".".join(map(str, report.facts.python)) in str(report)
    assert doctor.main([]) == (0 if report.ok else 1)
    assert capsys.readouterr().out == f"{report}\n"


def test_the_card_is_one_line(monkeypatch):
    for facts, start in (
        (NO_GPU, "Kernels run on the PTX machine, without a GPU · NVRTC 12.9.86 · Python 3.11.2"),
        (WITH_GPU, "Kernels run on Tesla T4 (compute capability 7.5"),
        (NO_CUPY, "The book's kernels run on the PTX machine, compiled beforehand · no NVRTC"),
        (dataclasses.replace(WITH_GPU, nvrtc=None), "Kernels cannot run here"),
    ):
        monkeypatch.setattr(doctor, "look", lambda facts=facts: facts)
        assert doctor.card().startswith(start) and "\n" not in doctor.card()


@pytest.mark.parametrize("facts, told", [(NO_CUPY, True), (NO_GPU, True), (WITH_GPU, False)])
def test_on_colab_the_card_says_how_to_get_a_gpu_where_there_is_none(facts, told, monkeypatch):
    facts = dataclasses.replace(facts, colab=True)
    monkeypatch.setattr(doctor, "look", lambda: facts)
    way = " · for a GPU choose Runtime > Change runtime type > T4 GPU"
    assert doctor.card().endswith(way) == told


def test_a_trial_that_fails_is_reported_and_not_raised():
    class Broken:
        float32 = "float32"

        def ones(self, *_, **__):
            raise RuntimeError("\n  cuda_fp16.h: No such file\nmore")

    assert doctor._trial(Broken()) == "RuntimeError: cuda_fp16.h: No such file"
