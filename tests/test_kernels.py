"""Every variant of every kernel, on the PTX machine; on a GPU with `pytest -m gpu`."""

from importlib import import_module

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import cp, gpu_available
from sgemm_lab.run.check import check, default_shapes, thorough_shapes
from sgemm_lab.run.launch import launch
from sgemm_lab.run.profile import profile

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")

STEPS = list(ladder)
VARIANTS = [variant for step in STEPS for variant in step.variants()]
DEFAULTS = [step() for step in STEPS]
QUICK = {
    *DEFAULTS,
    *(v for step in STEPS for v in step.variants()[:: 12 if step.number > 4 else 7]),
}
SMALL_BLOCKS = [
    ladder[1](BLOCK_X=8, BLOCK_Y=4),
    ladder[1](BLOCK_X=8, BLOCK_Y=4, COALESCED=0),
    ladder[2](TILE=8),
]
HERE = "gpu" if gpu_available() else "ptx"


@pytest.fixture(params=["ptx", pytest.param("gpu", marks=pytest.mark.gpu)], autouse=True)
def machine(request):
    """Which machine runs the kernels; one process has only one of them."""
    if request.param != HERE:
        pytest.skip(f"kernels run on the {HERE} here")


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v in QUICK], ids=lambda v: v.key)
def test_a_variant_is_right_on_the_shapes_that_break_kernels(variant):
    m, n, k = (size if size > 1 else 32 for size in variant.tile)
    found = check(variant, [*default_shapes(variant)[1:12:3], (m + 4, n + 8, k + 4)])
    assert found.ok, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.key)
def test_every_variant_is_right_on_25_shapes_and_more(variant):
    shapes = thorough_shapes(variant)
    found = check(variant, shapes)
    assert len(shapes) >= 25
    assert found.ok, str(found)


@pytest.mark.parametrize("offsets", [(1, 0, 0), (0, 2, 0), (0, 0, 3), (4, 8, 12)])
@pytest.mark.parametrize("variant", DEFAULTS[6:], ids=lambda variant: variant.key)
def test_arrays_that_begin_anywhere_are_right_although_kernels_move_16_bytes(variant, offsets):
    m, n, k = variant.tile
    found = check(variant, [(m, n, 2 * k)], offsets=offsets)
    assert found.ok, str(found)


@pytest.mark.parametrize("variant", DEFAULTS, ids=lambda variant: variant.key)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 3), (35, 79, 41), (129, 65, 97), (7, 5, 0)])
def test_shapes_from_other_peoples_bug_reports_are_right(variant, shape):
    found = check(variant, [shape], seed=1)
    assert found.ok, str(found)


@pytest.mark.parametrize(
    "variant",
    [*SMALL_BLOCKS, *(s.variants()[0] for s in STEPS[3:])],
    ids=lambda variant: variant.key,
)
def test_a_grid_folded_from_y_into_z_covers_all_of_c(variant, monkeypatch):
    module = import_module("sgemm_lab.ladder")
    monkeypatch.setattr(module, "GRID_LIMITS", (2**31 - 1, 3, 65535))
    M, N, K = 61, 59, 7
    if variant not in SMALL_BLOCKS:
        M, N = 4 * variant.tile[0] + 3, 5
    assert len(variant.grid(M, N)) == 3 and variant.grid(M, N)[1] <= 3
    assert check(variant, [(M, N, K)]).ok


@pytest.mark.parametrize(("tile", "ways"), [(8, 2), (16, 8), (32, 32)])
def test_layout_1_puts_words_that_a_warp_wants_at_once_into_one_bank(tile, ways):
    """As the PTX has it, reads and writes of As cost one wavefront in both layouts, those of Bs
    `ways` in layout 1."""
    size = 2 * tile
    A, B, C = (np.ones((size, size), np.float32) for _ in range(3))
    n, one, zero = np.int32(size), np.float32(1), np.float32(0)
    for layout, wavefronts in ((0, 1), (1, ways)):
        variant = ladder[2](TILE=tile, LAYOUT=layout)
        grid, args = variant.grid(size, size), (n, n, n, one, A, B, zero, C)
        counted = profile(
            variant.step.source, "tiled", grid, variant.block, args, options=variant.options
        ).written
        for kind in ("load", "store"):
            instructions = getattr(counted, f"shared_{kind}_instructions")
            assert getattr(counted, f"shared_{kind}_wavefronts") * 2 == instructions * (
                1 + wavefronts
            )


@pytest.mark.slow
@pytest.mark.parametrize("variant", SMALL_BLOCKS, ids=lambda variant: variant.key)
@pytest.mark.parametrize("shape", [(4_000_000, 3, 2), (3, 4_000_000, 2)])
def test_a_matrix_four_million_long_is_right(variant, shape):
    M, N, K = shape
    rng = np.random.default_rng(2)
    A, B = (rng.integers(-4, 5, size).astype(np.float32) for size in ((M, K), (K, N)))
    C = cp.asarray(np.full((M, N), np.nan, np.float32))
    launch(variant, cp.asarray(A), cp.asarray(B), C)
    assert np.array_equal(cp.asnumpy(C), A @ B)


@pytest.mark.slow
@pytest.mark.parametrize("variant", DEFAULTS[1:], ids=lambda variant: variant.key)
def test_more_rows_of_blocks_than_a_grid_has_are_right(variant):
    if HERE == "ptx":
        pytest.skip("needs a GPU: too many blocks")
    M, N, K = 65536 * variant.tile[0] + 5, 3, 2
    assert len(variant.grid(M, N)) == 3
    A, B = (cp.arange(r * c, dtype=cp.float32).reshape(r, c) % 7 for r, c in ((M, K), (K, N)))
    C = cp.full((M, N), cp.nan, cp.float32)
    launch(variant, A, B, C)
    assert np.array_equal(cp.asnumpy(C), cp.asnumpy(A) @ cp.asnumpy(B))


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_offsets_beyond_int32_are_right(step):
    """46 342² elements: an int offset has overflowed before the last row."""
    if HERE == "ptx" or cp.cuda.Device().mem_info[0] < 20e9:
        pytest.skip("needs a GPU with 20 GB of memory")
    size, few = 46_342, 3
    A = cp.zeros((size, size), dtype=cp.float32)
    A[-1] = cp.arange(size, dtype=cp.float32) % 5
    B = cp.zeros((size, few), dtype=cp.float32)
    B[-1] = B[-2] = cp.arange(1, few + 1, dtype=cp.float32)
    expected = cp.asnumpy(A[-1, -2:].sum() * cp.arange(1, few + 1, dtype=cp.float32))
    assert np.array_equal(cp.asnumpy(launch(step, A, B)[-1]), expected)  # tall A
    wide = launch(step, cp.ascontiguousarray(B.T), A)  # wide B
    assert np.array_equal(
        cp.asnumpy(wide[:, -1]), cp.asnumpy(A[-1, -1] * cp.arange(1, few + 1, dtype=cp.float32))
    )
