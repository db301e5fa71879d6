"""profile(): counts, findings and derived figures of one launch of anybody's kernel."""

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.run.nvrtc import CompileError
from sgemm_lab.run.profile import profile, profile_variant

TEMPLATE = """
template <int TILE> __global__ void tiled(int n, const float* in, float* out) {
    __shared__ float s[TILE];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    if (t < n) out[t] = s[TILE - 1 - t];
}"""


def test_a_template_is_named_by_its_instantiation():
    x, y = np.arange(16, dtype="f4"), np.zeros(16, "f4")
    found = profile(TEMPLATE, "tiled<16>", (1,), (16,), (np.int32(16), x, y))
    assert y.tolist() == x[::-1].tolist() and found.findings == ()
    assert (found.counters.global_load_requests, found.counters.global_load_sectors) == (1, 2)


def test_a_fault_is_a_finding_and_no_exception():
    x, y = np.arange(16, dtype="f4"), np.zeros(9, "f4")
    (finding,) = profile(TEMPLATE, "tiled<16>", (1,), (16,), (np.int32(16), x, y)).findings
    assert (finding.kind, finding.line) == ("out-of-bounds", 7) and "out[9]" in finding.message


def test_a_kernel_that_does_not_compile_is_an_exception_with_its_line():
    with pytest.raises(CompileError, match="line 7"):
        profile(TEMPLATE.replace("out[t]", "out["), "tiled<16>", (1,), (16,), ())


def test_derived_figures_follow_from_the_counts():
    n = 64
    found = profile_variant(ladder[2], n, n, n)
    assert found.flop_per_dram_byte == 2 * n**3 / (4 * 3 * n**2)
    count = found.counters
    moved = 128 * (count.shared_load_wavefronts + count.shared_store_wavefronts)
    assert found.flop_per_shared_byte == 2 * n**3 / moved
    assert count.sectors_per_load == 4 and count.wavefronts_per_load == 1.2
    assert profile_variant(ladder[1], n, n, n).flop_per_shared_byte == 0


def test_two_profiles_are_compared_in_one_table():
    table = repr(
        profile_variant(ladder[2], 32, 32, 32).compare(profile_variant(ladder[1], 32, 32, 32))
    )
    assert "naive" in table and "tiled" in table and "shared load wavefronts" in table
