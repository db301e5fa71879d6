"""sgemm against float64, on the PTX machine and, with -m gpu, on a GPU with both kinds of array."""

import json
import warnings

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.run import sgemm as module
from sgemm_lab.run.backend import cp, ptx
from sgemm_lab.run.sgemm import fastest, sgemm

KINDS = [
    pytest.param(np, id="numpy"),
    pytest.param(np, id="numpy-on-gpu", marks=pytest.mark.gpu),
    pytest.param(cp, id="cupy", marks=pytest.mark.gpu),
]
SHAPES = [
    (1, 1, 1), (33, 65, 97), (64, 128, 32), (129, 31, 5), (3, 200, 1), (0, 5, 7), (5, 0, 7),
    (5, 7, 0), (0, 0, 0),
]  # fmt: skip


def matrices(M, N, K, kind=np):
    random = np.random.default_rng(M + 10 * N + 100 * K)
    shapes = (M, K), (K, N), (M, N)
    return [kind.asarray(random.standard_normal(s, dtype=np.float32)) for s in shapes]


def close(result, A, B, C, alpha, beta) -> bool:
    """Within √K·eps·(|A||B|) of float64, and the roundings of the scaling."""
    result, A, B, C = (np.asarray(cp.asnumpy(X), np.float64) for X in (result, A, B, C))
    eps = np.finfo(np.float32).eps
    bound = abs(alpha) * np.sqrt(A.shape[1]) * eps * (abs(A) @ abs(B))
    bound += eps * (abs(alpha * (A @ B)) + abs(beta * C))
    return bool((abs(result - (alpha * (A @ B) + beta * C)) <= bound).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_product_in_the_kind_that_was_given(kind, shape):
    A, B, C = matrices(*shape, kind)
    for alpha, beta in ((1, 0), (-0.5, 2.25), (2, 1), (0, -1)):
        result = sgemm(A, B, alpha, beta, C)
        assert type(result) is type(A) and result.dtype == np.float32 and result.shape == C.shape
        assert close(result, A, B, C, alpha, beta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ladder, ids=lambda step: step.stem)
def test_every_step_can_be_asked_for(kind, step):
    A, B, C = matrices(33, 65, 97, kind)
    assert close(sgemm(A, B, 2, -1, C, step=step), A, B, C, 2, -1)


@pytest.mark.parametrize("step", [2, np.int64(2), "02_tiled", ladder[2], ladder[2]()], ids=repr)
def test_a_step_is_named_by_number_or_stem_or_is_itself_given(step, monkeypatch):
    used = []
    monkeypatch.setattr(module, "launch", lambda variant, *_, **__: used.append(variant))
    sgemm(*matrices(2, 3, 4)[:2], step=step)
    assert used == [ladder[2]()]


@pytest.mark.parametrize("kind", KINDS)
def test_views_and_transposes_are_as_good_as_copies(kind):
    A, B, C = matrices(40, 24, 18, kind)
    for a, b, c in (
        (A[::2], B, C[::2]),
        (A, B[:, ::-1], C),
        (A[1:, 3:], B[3:], C[1:]),
        (B.T, A.T, C.T),
    ):
        assert close(sgemm(a, b, 1, 0.5, c), a, b, c, 1, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_given_is_changed(kind):
    given = matrices(17, 9, 33, kind)
    before = [X.copy() for X in given]
    A, B, C = given
    result = sgemm(A, B, 1, 2, C)
    assert all((X == Y).all() for X, Y in zip(given, before, strict=True))
    result[...] = 0
    assert (before[2] == C).all(), "the result is an array of its own"


@pytest.mark.parametrize("kind", KINDS)
def test_with_out_the_result_goes_there_even_over_c_or_a(kind):
    A, B, C = matrices(24, 24, 24, kind)
    expected = sgemm(A, B, 1, 0.5, C)
    for out in (C.copy(), kind.zeros((48, 48), dtype=np.float32)[::2, ::2]):
        assert sgemm(A, B, 1, 0.5, C, out=out) is out and (out == expected).all()
    assert sgemm(A, B, 1, 0.5, C, out=C) is C and (expected == C).all()
    product = sgemm(A, B)
    assert sgemm(A, B, out=A) is A and (product == A).all()


@pytest.mark.parametrize("kind", KINDS)
def test_with_beta_0_c_is_not_read(kind):
    A, B, C = matrices(9, 17, 33, kind)
    expected = sgemm(A, B)
    C[...] = np.nan
    assert (sgemm(A, B, C=C) == expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_with_alpha_0_a_and_b_are_not_read(kind):
    A, B, C = matrices(9, 17, 33, kind)
    A[...], B[...] = np.inf, np.nan
    assert (sgemm(A, B, 0) == 0).all()
    assert (sgemm(A, B, 0, 2, C) == 2 * C).all()


class Tensor:
    """An array of some other library."""


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"A": np.zeros((2, 3))}, TypeError, r"A holds float64.*A\.astype\(np\.float32\)"),
        ({"B": np.zeros((3, 4), int)}, TypeError, "B holds int64"),
        ({"A": [[1.0, 2.0, 3.0]]}, TypeError, r"A is a list.*np\.asarray\(A"),
        ({"B": Tensor()}, TypeError, r"B is a test_sgemm\.Tensor"),
        ({"A": np.ma.zeros((2, 3), "f4")}, TypeError, "A is a numpy.ma.*MaskedArray"),
        ({"A": np.zeros(3, "f4")}, ValueError, r"A has shape \(3,\).*A\[None, :\]"),
        ({"B": np.zeros((4, 3), "f4")}, ValueError, "A is 2×3 and B is 4×3"),
        ({"C": np.zeros((4, 2), "f4")}, ValueError, "C is 4×2; A·B is 2×4"),
        ({"out": np.zeros((2, 5), "f4")}, ValueError, "out is 2×5; A·B is 2×4"),
        ({"out": np.zeros((2, 4))}, TypeError, "out holds float64"),
        ({"out": np.broadcast_to(np.float32(0), (2, 4))}, ValueError, "out is read-only"),
        ({"beta": 2}, ValueError, "beta=2 scales C, but no C was given"),
        ({"alpha": 1j}, TypeError, "alpha is a complex"),
        ({"alpha": 10**400}, ValueError, "alpha is larger than a float32 can be, 3.4e"),
        ({"beta": -1e39}, ValueError, "beta is larger than a float32"),
        ({"beta": np.ones((2, 4), "f4")}, TypeError, "beta is a numpy.ndarray"),
        ({"beta": None}, TypeError, "beta is a NoneType"),
        ({"step": 99}, KeyError, "there is no step 99"),
        ({"step": 2.5}, TypeError, "2.5"),
        ({"step": True}, TypeError, "step is True"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_multiplied_is_refused_in_words(change, error, message):
    given = {"A": np.zeros((2, 3), "f4"), "B": np.zeros((3, 4), "f4")} | change
    with pytest.raises(error, match=message):
        sgemm(**given)


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (2**31, {}, "M=2147483648: a kernel's int"),
        (2**31 - 1, {"beta": 1}, "no C was given"),
        (2**31 - 1, {"alpha": 1e39}, "alpha is larger"),
    ],
)
def test_sizes_and_scalars_are_refused_before_anything_is_copied(rows, more, message, monkeypatch):
    monkeypatch.setattr(np, "ascontiguousarray", lambda _: pytest.fail("8 GiB are copied"))
    A = np.broadcast_to(np.float32(1), (rows, 1))
    with pytest.raises(ValueError, match=message):
        sgemm(A, np.ones((1, 1), np.float32), **more)


@pytest.mark.gpu
def test_numpy_and_cupy_arrays_are_not_mixed():
    A, B, _ = matrices(2, 3, 4)
    with pytest.raises(TypeError, match="A is of NumPy, B is of CuPy"):
        sgemm(A, cp.asarray(B))


# --------------------------------------------------------------------------------- which kernel


@pytest.mark.parametrize("N", [256, 1024, 4096])
def test_the_default_is_the_fastest_recorded_at_that_size(N):
    runs = [r for r in records.runs("h200", N=N, kind="measured") if r.step and not r.stale]
    best = max(runs, key=lambda run: run.gflops)
    assert fastest(N, N, N, "h200").macros == best.macros


def test_another_record_makes_another_choice(tmp_path):
    record = json.loads((module.MEASUREMENTS / "h200.json").read_text())
    chosen = fastest(2048, 2048, 2048, "h200")
    for run in record["runs"]:
        if run["kernel"] == chosen.key:
            run["ms"] = {name: 10 * value for name, value in run["ms"].items()}
    (tmp_path / "h200.json").write_text(json.dumps(record))
    assert fastest(2048, 2048, 2048, "h200", tmp_path) != chosen


def test_the_nearest_recorded_size_decides_by_its_multiply_adds():
    assert fastest(1, 1, 1, "h200") == fastest(256, 256, 256, "h200")
    assert fastest(0, 5, 5, "h200") == fastest(256, 256, 256, "h200")
    assert fastest(10**6, 10**4, 10**4, "h200") == fastest(8192, 8192, 8192, "h200")
    assert fastest(900, 1100, 1100, "h200") == fastest(1024, 1024, 1024, "h200")


def test_a_kernel_that_has_changed_since_is_not_chosen(tmp_path):
    record = json.loads((module.MEASUREMENTS / "h200.json").read_text())
    chosen = fastest(1024, 1024, 1024, "h200")
    for run in record["runs"]:
        if run["step"] == chosen.step.number:
            run["source_hash"] = "0" * 16
    (tmp_path / "h200.json").write_text(json.dumps(record))
    assert fastest(1024, 1024, 1024, "h200", tmp_path).step != chosen.step


def test_a_kernel_that_this_chip_cannot_run_is_not_chosen(monkeypatch):
    monkeypatch.setattr(module, "_capability", lambda: (7, 0))
    with pytest.raises(LookupError):
        fastest(1024, 1024, 1024, "h200")


def test_where_nothing_is_recorded_the_message_names_the_way_out(tmp_path):
    with pytest.raises(LookupError, match=r"nothing is recorded on h200.*bench.*step=9"):
        fastest(64, 64, 64, "h200", tmp_path)


# ---------------------------------------------------------------------------- how long it takes


@pytest.mark.skipif(cp is not ptx, reason="a GPU computes here")
def test_a_long_product_on_the_ptx_machine_is_announced_before_it_starts(monkeypatch):
    said = []

    def never(*_, **__):
        said.append("launched")

    monkeypatch.setattr(module, "launch", never)
    A = np.zeros((4096, 4096), np.float32)
    with pytest.warns(UserWarning, match=r"4096×4096×4096 takes .* 1\d minutes.*A @ B") as caught:
        sgemm(A, A)
    assert said == ["launched"] and caught[0].filename == __file__


def test_a_short_product_is_not_announced():
    A, B, _ = matrices(65, 65, 65)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgemm(A, B)
