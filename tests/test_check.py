"""The checker passes right kernels and catches broken ones: each mutant has one mistake."""

import dataclasses
import re

import numpy as np
import pytest

from sgemm_lab.__main__ import COMMANDS
from sgemm_lab.__main__ import main as program
from sgemm_lab.ladder import ladder
from sgemm_lab.run import check as checker
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import cp, gpu_available
from sgemm_lab.run.check import SCALARS, Check, check, default_shapes, main, thorough_shapes
from sgemm_lab.run.profile import main as profile_main
from sgemm_lab.run.profile import profile_variant

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")

TILED = ladder[2](TILE=16)
EPILOGUE = "beta == 0.0f ? alpha * sum : alpha * sum + beta * *c"
TF32 = """\
__device__ float tf32(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

extern "C" __global__"""


def mutant(*replacements: tuple[str, str]):
    """The tiled kernel with other text in some places."""
    source = TILED.step.source
    for old, new in replacements:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in the kernel"
        source = source.replace(old, new)
    return dataclasses.replace(TILED, step=dataclasses.replace(TILED.step, text=source))


MUTANTS = {
    "no edge check on the store": [("if (row < M && col < N)", "if (row < M)")],
    "no edge check along K in A": [("k0 + threadIdx.x < K ? *a : 0.0f", "*a")],
    "no edge check along K in B": [("k0 + threadIdx.y < K ? *b : 0.0f", "*b")],
    "A's leading dimension swapped": [("min(row, M - 1) * K", "min(row, M - 1) * M")],
    "B's leading dimension swapped": [("threadIdx.y * N", "threadIdx.y * K")],
    "C transposed": [("C[(size_t)row * N + col]", "C[(size_t)col * M + row]")],
    "C read although beta is 0": [(EPILOGUE, "alpha * sum + beta * *c")],
    "beta forgotten": [(EPILOGUE, "alpha * sum")],
    "alpha forgotten": [("? alpha * sum", "? sum")],
    "rows beyond the last read": [("min(row, M - 1)", "row")],
    "the last tile left out": [("k0 < K; k0", "k0 + TILE <= K; k0")],
    "the second of odd tiles left out": [("k0 += TILE", "k0 += 2 * TILE")],
    "some elements NaN": [("sum = 0.0f;", "sum = row + col == 5 ? __int_as_float(-1) : 0.0f;")],
    "some elements left out": [("row < M && col < N)", "row < M && col < N && row + col != 16)")],
    "A overwritten": [("float sums[", "if (K > 0)\n        ((float*)A)[0] = 9;\n    float sums[")],
    "written before C": [("*c = beta", "if (c == C)\n            c[-1] = 0;\n        *c = beta")],
    "nothing done when K is 0": [("float sums[", "if (K == 0)\n        return;\n    float sums[")],
    "TF32 inputs": [
        ('extern "C" __global__', TF32),
        ("As[threadIdx.y][k]", "tf32(As[threadIdx.y][k])"),
        ("Bs[k * BS_K + threadIdx.x * BS_N]", "tf32(Bs[k * BS_K + threadIdx.x * BS_N])"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("replacements", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_kernel_is_caught(replacements):
    found = check(mutant(*replacements))
    assert not found.ok
    assert str(found).startswith("02_tiled TILE=16: WRONG, tried on 14 shapes\n")


def test_the_unchanged_kernel_passes():
    found = check(mutant())
    assert found.ok and found.failures == ()
    assert 0 < found.worst < 1


def test_tf32_fails_where_a_bound_of_k_eps_would_let_it_pass():
    tf32 = mutant(*MUTANTS["TF32 inputs"])
    found = check(tf32, shapes=[(17, 15, 512)])
    times = float(re.search(r"([\d.]+) times the allowed error", found.failures[0])[1])
    assert 1 < times < np.sqrt(512)
    assert "random numbers" in found.failures[0], "whole numbers this small survive TF32"


def test_the_failure_names_the_shape_the_element_and_both_values():
    wrong = mutant(("sum = 0.0f;", "sum = row == 2 && col == 3 ? 1000.0f : 0.0f;"))
    (failure,) = check(wrong, shapes=[(7, 9, 5)]).failures
    assert re.match(
        r"7×9×5: C\[2, 3\] is -?[\d.]+ and should be -?[\d.]+; 1 of 63 elements are wrong "
        r"\(whole numbers, alpha=1, beta=0\)$",
        failure,
    )


def test_two_runs_that_differ_are_caught(monkeypatch):
    runs = iter(range(10**6))
    real = checker.launch

    def shaky(variant, A, B, C, **scalars):
        real(variant, A, B, C, **scalars)
        if next(runs) == 6:  # after the six compared runs
            C[0, 0] += 1

    monkeypatch.setattr(checker, "launch", shaky)
    (failure,) = check(TILED, shapes=[(7, 9, 5)]).failures
    assert failure == "7×9×5: two runs on the same input differ: threads race"


def test_the_default_shapes_hold_every_size_that_breaks_kernels():
    for variant in (TILED, ladder[2](TILE=8), ladder[1](BLOCK_X=64, BLOCK_Y=4)):
        shapes = default_shapes(variant)
        m, n, k = (size if size > 1 else 32 for size in variant.tile)
        for axis, tile in enumerate((m, n, k)):
            sizes = {shape[axis] for shape in shapes}
            assert {0, 1, tile - 1, tile, tile + 1} <= sizes
            assert {-(-size // tile) for size in sizes} >= {1, 2, 3}
        assert sum(M != N != K != M for M, N, K in shapes) >= len(shapes) - 2
        assert any(K >= 512 for _, _, K in shapes)


@pytest.mark.parametrize("step", list(ladder), ids=lambda step: step.stem)
def test_the_thorough_shapes_are_those_and_more_for_every_setting(step):
    for variant in step.variants():
        shapes = thorough_shapes(variant)
        m, n, k = (size if size > 1 else 32 for size in variant.tile)
        assert len(set(shapes)) == len(shapes) >= 25 and set(default_shapes(variant)) < set(shapes)
        assert all(max(shape) < 4097 for shape in default_shapes(variant))
        assert {axis for shape in shapes for axis in range(3) if shape[axis] == 4097} == {0, 1, 2}
        whole = [s for s in shapes if 0 not in s and s[0] % m == s[1] % n == s[2] % k == 0]
        assert {s[2] // k % 2 for s in whole} == {1} and len(whole) >= 3
        fours = [(N % 4 == 0, K % 4 == 0) for M, N, K in shapes if N % n and K % k and M % m]
        assert len(set(fours)) == 4 or step.fetches != 4


def test_offsets_move_the_arrays_and_not_the_guards():
    for offset in (0, 1, 6):
        outer, inner = checker._between_guards(np.ones((3, 5), np.float32), cp, offset)
        start = [x.data.ptr if gpu_available() else x.ctypes.data for x in (outer, inner)]
        assert start[1] - start[0] == 4 * (128 + offset)
        values = cp.asnumpy(outer)
        assert np.isnan(values).sum() == len(values) - 15 == 256 + offset
    assert check(TILED, shapes=[(17, 15, 9)], offsets=(1, 2, 3)).ok


@pytest.mark.parametrize(
    ("edit", "offsets"),
    [
        ((" | (size_t)C) % 16", ") % 16"), (0, 0, 1)),
        (("((size_t)A | ", "("), (1, 0, 0)),
        ((" | (size_t)B | ", " | "), (0, 3, 0)),
    ],
)
def test_a_kernel_that_ignores_where_an_array_begins_is_caught(edit, offsets):
    step = ladder[7]
    assert step.source.count(edit[0]) == 1
    broken = dataclasses.replace(step, text=step.source.replace(*edit))()
    m, n, k = broken.tile
    assert check(broken, shapes=[(m, n, k)]).ok
    if gpu_available():
        return  # there it ends the process
    (failure,) = check(broken, shapes=[(m, n, k)], offsets=offsets).failures
    assert "which is not a multiple of 16 bytes" in failure


def test_every_alpha_and_beta_has_its_turn(monkeypatch):
    seen = set()
    monkeypatch.setattr(checker, "launch", lambda *_, alpha, beta, on: seen.add((alpha, beta)))
    check(TILED)
    assert {alpha for alpha, _ in SCALARS} == {beta for _, beta in SCALARS} == {0, 1, -0.5, 2.25}
    assert seen < set(SCALARS), "a kernel that does nothing stops at its first failure"
    monkeypatch.setattr(checker, "_compare", lambda *_: (0.0, None))
    check(TILED)
    assert seen == set(SCALARS)


def test_a_check_is_one_line_and_the_same_every_time():
    found = check(ladder[2], shapes=[(33, 65, 97), (1, 1, 1)])
    assert re.fullmatch(
        r"02_tiled: right on 2 shapes; worst error 0\.\d\d of the bound √K·eps·\(\|A\|\|B\|\) "
        r"at (33×65×97|1×1×1)",
        str(found),
    )
    assert str(check(ladder[2], shapes=[(33, 65, 97), (1, 1, 1)])) == str(found) == repr(found)


def test_a_right_result_needs_no_error_where_the_bound_is_zero():
    found = check(TILED, shapes=[(0, 3, 2), (3, 0, 2)])
    assert found == Check(TILED, ((0, 3, 2), (3, 0, 2)), 0.0, None, ())
    assert str(found).endswith("worst error 0.00 of the bound √K·eps·(|A||B|)")


def test_cublas_passes_too():
    assert check(ladder[0]).ok


def test_a_failure_on_the_machine_is_a_finding_and_not_an_exception(monkeypatch):
    def fault(*_, **__):
        raise RuntimeError("out of bounds, line 12")

    monkeypatch.setattr(checker, "launch", fault)
    assert check(TILED, shapes=[(2, 3, 4)]).failures == ("2×3×4: out of bounds, line 12",)


@pytest.mark.skipif(gpu_available(), reason="the GPU reads the guard and says nothing")
def test_a_read_beyond_b_that_reaches_no_result_is_found_on_the_ptx_machine():
    assert not check(mutant(("min(col, N - 1)", "col"))).ok


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (2, r"^2 \(int\) is no variant of a step\. Use ladder\[2\], or"),
        ("02_tiled", r"Use ladder\['02_tiled'\], or"),
        (None, r"^NoneType is no variant of a step\. Use ladder\[2\]"),
    ],
)
def test_what_is_no_variant_is_refused_with_what_was_meant(wrong, says):
    with pytest.raises(TypeError, match=says):
        check(wrong)


@pytest.mark.parametrize(
    ("shapes", "error", "says"),
    [
        ((3, 4, 5), TypeError, r"is one shape; check takes a list of them: \[\(3, 4, 5\)\]"),
        (7, TypeError, "is no list of shapes"),
        ([(3, 4)], TypeError, r"\(3, 4\) is no shape: three whole numbers \(M, N, K\)"),
        ([(3, -1, 5)], ValueError, "N=-1: a kernel's int holds sizes from 0 to 2147483647"),
        ([(3, 4, 5.5)], TypeError, "K=5.5 is not a whole number"),
    ],
)
def test_what_is_no_shape_is_refused_in_words(shapes, error, says):
    with pytest.raises(error, match=says):
        check(TILED, shapes=shapes)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ((0, 4, 4), "C has no elements, so there is nothing to launch"),
        ((-4, 4, 4), "M=-4: a kernel's int holds sizes from 0"),
        ((200_000, 4, 200_000), "the matrices take 149.0 GiB; here they may take 1"),
    ],
)
def test_a_size_that_cannot_be_profiled_is_refused_in_words(size, says, capsys):
    with pytest.raises(ValueError, match=says):
        profile_variant(TILED, *size)
    assert profile_main(["2", "--size", *map(str, size)]) == 2
    assert re.search(says, capsys.readouterr().err)


def test_guards_leave_the_array_aligned():
    _, inner = checker._between_guards(np.zeros((3, 5), np.float32), cp)
    address = inner.data.ptr if gpu_available() else inner.ctypes.data
    assert address % 16 == 0 and inner.flags.c_contiguous and isinstance(inner, cp.ndarray)


def test_the_command_checks_what_it_is_asked_for(capsys):
    assert main(["2", "TILE=8"]) == 0
    assert capsys.readouterr().out.startswith("02_tiled TILE=8: right on 14 shapes")
    assert main(["2", "TILE=64"]) == 2
    assert "TILE=64 needs 64×64 = 4096 threads" in capsys.readouterr().err
    assert main(["99"]) == 2
    assert "there is no step 99" in capsys.readouterr().err
    assert main(["2", "TILE=x"]) == 2
    capsys.readouterr()
    for words, says in {
        "TILE=16": "TILE=16 of which step? Name it, too: 2 TILE=16.",
        "2 TILE": "TILE needs a value: TILE=8, TILE=16 or TILE=32.",
        "2 TILE=": "TILE needs a value: TILE=8, TILE=16 or TILE=32.",
        "2 TILE=64 --all": "TILE=64 needs 64×64 = 4096 threads; a block may have 1024. Choose 8, "
        "16 or 32.",
    }.items():
        assert main(words.split()) == 2
        assert capsys.readouterr().err == f"{says}\n"


def test_the_program_without_a_command_says_which_there_are(capsys):
    assert program([]) == 2
    said = capsys.readouterr().err
    assert "usage: python -m sgemm_lab" in said and all(name in said for name in COMMANDS)


def test_the_command_says_by_its_exit_code_that_a_kernel_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(
        checker, "check", lambda v, seed: Check(v, ((1, 1, 1),), 0.0, None, ("1×1×1: no",))
    )
    assert main(["2"]) == 1
    assert capsys.readouterr().out == "02_tiled: WRONG, tried on 1 shape\n  1×1×1: no\n"
