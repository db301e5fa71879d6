"""The launcher refuses, in words and before anything runs, what a kernel would misread."""

import dataclasses

import numpy as np
import pytest

from sgemm_lab.ladder import Step, Variant, ladder, own
from sgemm_lab.run import launch as launcher
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import cp, gpu_available
from sgemm_lab.run.launch import launch, limits, prepare

TILED = ladder[2](TILE=8)
M, N, K = 9, 17, 5

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")


def ones(*shape, dtype=np.float32):
    return cp.asarray(np.ones(shape, dtype))


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fails the test if a kernel is as much as compiled."""

    def refuse(*_):
        pytest.fail("the launcher went on to launch")

    monkeypatch.setattr(launcher, "kernel", refuse)
    monkeypatch.setattr(launcher, "_cublas", refuse)


def shaped(*shape):
    """An array of any size that takes four bytes."""
    return (cp if gpu_available() else np).broadcast_to(ones(1, 1), shape)


WRONG_ARRAYS = {
    "a list": ([[1.0]], TypeError, r"A is a list\. Use cp\.asarray\(A, dtype=cp\.float32\)"),
    "float64": (ones(M, K, dtype=np.float64), TypeError, r"A holds float64.*A\.astype"),
    "int32": (ones(M, K, dtype=np.int32), TypeError, "A holds int32; the kernels read float32"),
    "float16": (ones(M, K, dtype=np.float16), TypeError, "A holds float16"),
    "one dimension": (ones(K), ValueError, r"A has shape \(5,\); a matrix has two dimensions"),
    "Fortran order": (ones(K, M).T, ValueError, "A is in Fortran .*A.copy"),
    "a strided view": (ones(M, 2 * K)[:, ::2], ValueError, "A is a view with gaps.*A.copy"),
    "part of each row": (ones(M, 2 * K)[:, :K], ValueError, r"view with gaps, strides \(40, 4\)"),
    "every other row": (ones(2 * M, K)[::2], ValueError, "view with gaps"),
    "backwards": (ones(M, K)[::-1], ValueError, "view with gaps"),
    "too few columns": (ones(M, K - 1), ValueError, "A is 9×4 and B is 5×17"),
}


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize(("A", "error", "words"), WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_an_array_that_a_kernel_would_misread_is_refused(nothing_runs, step, A, error, words):
    with pytest.raises(error, match=words):
        launch(ladder[step], A, ones(K, N))


def test_every_array_is_looked_at(nothing_runs):
    with pytest.raises(TypeError, match="B holds float64"):
        launch(TILED, ones(M, K), ones(K, N, dtype=np.float64))
    with pytest.raises(TypeError, match="C holds float64"):
        launch(TILED, ones(M, K), ones(K, N), ones(M, N, dtype=np.float64))
    with pytest.raises(ValueError, match="C is in Fortran"):
        launch(TILED, ones(M, K), ones(K, N), ones(N, M).T)
    with pytest.raises(ValueError, match="C is 17×9; A·B is 9×17"):
        launch(TILED, ones(M, K), ones(K, N), ones(N, M))


@pytest.mark.parametrize(
    ("name", "A", "B"),
    [
        ("M", (2**31, 1), (1, 1)),
        ("N", (1, 1), (1, 2**31)),
        ("K", (1, 2**31), (2**31, 1)),
    ],
)
def test_a_size_beyond_int32_is_refused(nothing_runs, name, A, B):
    with pytest.raises(ValueError, match=f"{name}=2147483648 does not fit the kernel's int"):
        launch(TILED, shaped(*A), shaped(*B))


@pytest.mark.skipif(gpu_available(), reason="a GPU array is never read-only or misaligned")
def test_a_misaligned_or_read_only_array_is_refused(nothing_runs):
    odd = np.zeros(4 * M * K + 1, np.uint8)[1:].view(np.float32).reshape(M, K)
    with pytest.raises(ValueError, match="A starts off a 4-byte boundary"):
        launch(TILED, odd, ones(K, N))
    C = ones(M, N)
    C.flags.writeable = False
    with pytest.raises(ValueError, match="C is read-only"):
        launch(TILED, ones(M, K), ones(K, N), C)


def test_c_may_not_overlap_a_or_b(nothing_runs):
    square = ones(8, 8)
    with pytest.raises(ValueError, match="C overlaps A"):
        launch(TILED, square, ones(8, 8), square)
    with pytest.raises(ValueError, match="C overlaps B"):
        launch(TILED, ones(8, 8), square, square)
    both = ones(12, 8)
    with pytest.raises(ValueError, match="C overlaps B"):
        launch(TILED, ones(8, 8), both[4:], both[:8])


def test_a_and_b_may_be_the_same_array_and_neighbours_may_touch():
    memory = ones(16, 8)
    C = launch(TILED, memory[:8], memory[:8], memory[8:])
    assert (cp.asnumpy(C) == 8).all()


@pytest.mark.parametrize("value", ["2", 1 + 1j, None, [1.0]])
def test_alpha_and_beta_are_real_numbers(nothing_runs, value):
    with pytest.raises(TypeError, match="alpha is a"):
        launch(TILED, ones(M, K), ones(K, N), alpha=value)


def test_beta_without_c_is_refused(nothing_runs):
    with pytest.raises(ValueError, match=r"beta=0\.5 scales C, but no C was given"):
        launch(TILED, ones(M, K), ones(K, N), beta=0.5)


def test_something_else_than_a_variant_is_refused(nothing_runs):
    with pytest.raises(TypeError, match=r"Use ladder\['02_tiled'\], or ladder\[2\]\(TILE=16\)"):
        launch("02_tiled", ones(M, K), ones(K, N))


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        ((1, 65536), (32, 32), 0, "65536 blocks along y; it may have 65535"),
        ((2**31, 1), (32, 32), 0, "2147483648 blocks along x; it may have 2147483647"),
        ((1, 1, 65536), (32, 32), 0, "65536 blocks along z"),
        ((1, 1), (64, 64), 0, "64×64 = 4096 threads is too large; a block may have 1024"),
        ((1, 1), (32, 32), 49153, "49153 bytes of shared memory; it may declare 49152"),
    ],
)
def test_what_no_device_runs_is_said_in_words(grid, block, shared, words):
    assert words in limits(grid, block, shared)
    assert limits((2**31 - 1, 65535, 65535), (32, 32), 49152) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": lambda m: (64, 64)}, "64×64 = 4096 threads"),
        ({"shared_bytes": lambda m: 50_000}, "50000 bytes of shared memory"),
    ],
)
def test_a_launch_beyond_the_devices_limits_is_refused(nothing_runs, change, words):
    variant = dataclasses.replace(TILED, step=dataclasses.replace(TILED.step, **change))
    with pytest.raises(ValueError, match=words):
        launch(variant, ones(M, K), ones(K, N))


def test_a_grid_too_large_is_refused(nothing_runs, monkeypatch):
    monkeypatch.setattr(Variant, "grid", lambda self, M, N: (1, 70_000))
    with pytest.raises(ValueError, match="M=9, N=17: the grid has 70000 blocks along y"):
        launch(TILED, ones(M, K), ones(K, N))


def test_scalars_reach_the_kernel_as_float32_and_int32(monkeypatch):
    seen = []

    def record(grid, block, args, shared_mem):
        seen.extend(args)

    monkeypatch.setattr(launcher, "kernel", lambda *_: record)
    A, B, C = ones(M, K), ones(K, N), ones(M, N)
    launch(TILED, A, B, C, alpha=2, beta=True)
    assert [type(a) for a in seen[:4]] == [np.int32] * 3 + [np.float32]
    assert [int(a) for a in seen[:3]] == [M, N, K]
    assert seen[4] is A and seen[5] is B and seen[7] is C
    assert type(seen[6]) is np.float32 and seen[6] == 1


def test_dynamic_shared_memory_reaches_the_launch(monkeypatch):
    asked = []
    monkeypatch.setattr(
        launcher, "kernel", lambda *_: lambda *_, shared_mem: asked.append(shared_mem)
    )
    launch(own(TILED.step.source, "tiled", (32, 32), (32, 32, 32), dynamic_bytes=96), ones(M, K),
           ones(K, N))  # fmt: skip
    assert asked == [96]


def test_a_step_stands_for_its_default_variant_and_c_is_made():
    C = launch(ladder[2], ones(M, K), ones(K, N))
    assert C.shape == (M, N) and C.dtype == np.float32
    assert (cp.asnumpy(C) == K).all()


def test_a_prepared_launch_can_be_repeated():
    A, B, C = ones(M, K), ones(K, N), ones(M, N)
    run = prepare(TILED, A, B, C, alpha=1, beta=1)
    assert run() is C and run() is C
    assert (cp.asnumpy(C) == 1 + 2 * K).all()


@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_empty_result_needs_no_launch(step):
    for shape in ((0, 3), (3, 0), (0, 0)):
        C = launch(ladder[step], ones(shape[0], 4), ones(4, shape[1]))
        assert C.shape == shape


def test_a_syntax_error_is_shown_with_its_line():
    source = TILED.step.source
    line = source[: source.index("sum +=")].count("\n") + 1
    step = dataclasses.replace(TILED.step, text=source.replace("sum +=", "sum =+ ("))
    with pytest.raises(nvrtc.CompileError, match=rf"02_tiled.cu, line {line}: expected a"):
        launch(step, ones(M, K), ones(K, N))


def test_cublas_scales_and_adds_and_does_not_read_c_when_beta_is_0():
    A, B = ones(M, K), ones(K, N)
    C = cp.asarray(np.full((M, N), np.nan, np.float32))
    assert (cp.asnumpy(launch(ladder[0], A, B, C, alpha=-0.5)) == -0.5 * K).all()
    assert (cp.asnumpy(launch(ladder[0], A, B, C, alpha=2, beta=3)) == 0.5 * K).all()


@pytest.mark.gpu
def test_tf32_is_refused(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(RuntimeError, match="TF32"):
        launch(ladder[0], ones(M, K), ones(K, N))


@pytest.mark.gpu
def test_cupys_tf32_is_refused():
    from cupy._core import get_compute_type, set_compute_type
    from cupy._core._routines_linalg import COMPUTE_TYPE_TF32

    before = get_compute_type(np.float32)
    try:
        set_compute_type(np.float32, COMPUTE_TYPE_TF32)
        with pytest.raises(RuntimeError, match="CUPY_TF32"):
            launch(ladder[0], ones(M, K), ones(K, N))
    finally:
        set_compute_type(np.float32, before)


@pytest.mark.gpu
def test_a_kernel_for_a_newer_gpu_is_refused(nothing_runs):
    step: Step = dataclasses.replace(TILED.step, min_capability=(99, 0))
    with pytest.raises(ValueError, match=r"02_tiled needs compute capability 99\.0; this GPU has"):
        launch(step, ones(M, K), ones(K, N))
