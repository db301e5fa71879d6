"""Random kernels compute on the PTX machine what g++ makes of their text: see fuzz_machine.py."""

import shutil

import pytest
from fuzz_machine import failures

pytestmark = pytest.mark.skipif(
    not shutil.which("g++"), reason="g++, which the PTX machine is compared with, is not here"
)

ONCE_WRONG = [62, 261, 270, 315]  # several arrays in one access, NaN to u64, FMA that rounds twice


def check(seeds, arch="compute_75"):
    found = [f"seed {program.seed}: {what}" for program, _, what in failures(seeds, arch)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seeds, arch", [
    (ONCE_WRONG, "compute_75"), ([1015, 1016, 1017, 1018], "compute_90"),
    ([2000, 2001, 2002, 2003], "compute_80"),
])  # fmt: skip
def test_random_kernels_compute_what_a_cpu_computes(seeds, arch):
    check(seeds, arch)


@pytest.mark.slow
def test_a_hundred_random_kernels_compute_what_a_cpu_computes():
    check(range(3000, 3100))
