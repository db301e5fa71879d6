"""Every exercise: its skeleton is refused with a reason, its folded solution is accepted."""

import re

import pytest

from sgemm_lab import book
from sgemm_lab.learn.exercises import EXERCISES, given, judge

SOLUTION = re.compile(r"<summary>Solution</summary>\s*```cuda\n(.*?)```", re.S)


def exercises():
    """(name, skeleton, solution) of each exercise, as the chapters have them."""
    for path in book.notebooks():
        cells = book.read(path).cells
        for number, cell in enumerate(cells):
            if asked := re.match(r'judge\("([\d.]+)", attempt\)', cell.source):
                skeleton = re.search(r"r'''(.*?)'''", cells[number - 1].source, re.S)[1]
                yield asked[1], skeleton, SOLUTION.search(cells[number + 1].source)[1]


FOUND = list(exercises())


def test_every_exercise_stands_in_a_chapter_and_every_chapter_has_one():
    assert sorted(name for name, *_ in FOUND) == sorted(EXERCISES)
    chapters = {path.stem[:2] for path in book.notebooks() if path.stem[:2].isdecimal()}
    assert chapters == {name[:2] for name in EXERCISES}


@pytest.mark.parametrize("name, skeleton, solution", FOUND, ids=[name for name, *_ in FOUND])
def test_the_skeleton_is_refused_with_a_reason_and_the_solution_is_accepted(
    name, skeleton, solution
):
    refused = judge(name, skeleton)
    assert not refused.solved and refused.lines and "not yet" in str(refused)
    accepted = judge(name, solution)
    assert accepted.solved, str(accepted)


@pytest.mark.parametrize("code, says", [
    ("int x", "does not compile"),
    ('extern "C" __global__ void other(int n) {}', "no kernel named 'scale'"),
    ('extern "C" __global__ void scale(int n) {}', "takes 1 arguments"),
    ('extern "C" __global__ void scale(int n, float f, float* x, float* y)'
     "{ y[0] = f * x[0]; }", r"y\[1\] is nan"),
    ("", "no kernel named"),
    (None, r"a kernel is a text in CUDA C\+\+; this is None"),
    ("__global__ void scale(int n, float f, const float* x, float* y) {}", 'put extern "C" before'),
    ('extern "C" __global__ void scale(int n, double f, float* x, float* y) {}',
     r"passes: \(int n, float factor, .*\n  scale: f is a double"),
    ('extern "C" __global__ void scale(const float* x, float* y, int n, float f) {}',
     "the declaration differs"),
    ('extern "C" __global__ void scale(int n, float f, float* y, const float* x)'
     "{ y[threadIdx.x % n] = f; }", "x was written to; the result belongs into y"),
])  # fmt: skip
def test_a_kernel_that_is_not_one_gets_a_message_and_no_exception(code, says):
    verdict = judge("00.1", code)
    assert not verdict.solved and re.search(says, str(verdict))


def test_a_right_kernel_whose_loads_are_slow_is_told_how_far_it_is_from_the_goal():
    _, _, solution = next(found for found in FOUND if found[0] == "01.1")
    thread = "(threadIdx.y * 32 + threadIdx.x)"
    down_columns = solution.replace("Dim.y + threadIdx.y", f"Dim.y + {thread} % 8")
    down_columns = down_columns.replace("Dim.x + threadIdx.x", f"Dim.x + {thread} / 8")
    verdict = judge("01.1", down_columns)
    assert verdict.lines[0] == "launched in blocks of 32×8 threads, one for each 8×32 tile of C"
    assert verdict.lines[1] == "the result is right" and not verdict.solved
    assert "the goal is 2.5" in verdict.lines[2]


def solution(name):
    return next(text for found, _, text in FOUND if found == name)


def test_the_naive_kernel_under_another_name_tiles_nothing():
    verdict = judge("02.1", solution("01.1").replace("void naive", "void tiled"))
    assert not verdict.solved
    assert "loads 262,144 sectors from global memory; the goal is 65,536" in verdict.lines[2]


def test_a_promise_that_nothing_overlaps_still_leaves_one_store_too_many():
    skeleton = next(text for name, text, _ in FOUND if name == "03.1")
    for attempt, times in ((skeleton, 129), (skeleton.replace("* C", "* __restrict__ C"), 2)):
        assert f"stores each element of C {times} times" in judge("03.1", attempt).lines[-1]


@pytest.mark.parametrize("pad, loads, stores", [(0, "196,608", "28,672"), (1, 0, "4,096")])
def test_a_padding_that_leaves_conflicts_is_told_how_many(pad, loads, stores):
    padded = solution("04.1").replace("#define PAD 2", f"#define PAD {pad}")
    said = judge("04.1", padded).lines[-1]
    assert f"shared loads meet {loads} bank conflicts and its stores {stores};" in said


def test_a_row_after_the_other_is_not_coarsened():
    inner = """float b = Bs[k][tx];
            for (int i = 0; i < 2; ++i) sums[i] += As[ty + 16 * i][k] * b;"""
    assert inner in solution("05.1")
    apart = """sums[0] += As[ty][k] * Bs[k][tx];
        }
        __syncthreads();
        for (int k = 0; k < 32; ++k) {
            sums[1] += As[ty + 16][k] * Bs[k][tx];"""
    said = judge("05.1", solution("05.1").replace(inner, apart)).lines[-1]
    assert "costs 1.50 wavefronts and 1.25 loads" in said


def test_128_bit_loads_must_ask_for_the_row_and_not_only_for_its_end():
    end_only = solution("06.1").replace("cols % 4 == 0", "col + 4 <= cols")
    assert "not a multiple of 16 bytes" in judge("06.1", end_only).lines[-1]
    single = solution("06.1").replace("cols % 4 == 0", "false")
    assert (
        "512 requests to load and 512 to store; the goal is 128" in judge("06.1", single).lines[-1]
    )


def test_columns_that_lie_apart_have_no_conflict_but_cost_too_many_loads():
    fours = "n / 4 * 32 + thread % 8 * 4 + n % 4"
    assert fours in solution("08.1")
    apart = solution("08.1").replace(fours, "n * 8 + thread % 8")
    assert "costs 0.31 wavefronts and 0.28 loads" in judge("08.1", apart).lines[-1]


def test_a_part_of_a_kernel_is_judged_with_what_is_given_and_its_lines_keep_their_numbers():
    assert "sums[m][n] += As[k][row_of(thread, m)]" in given("09.1").source
    broken = solution("09.1").replace("thread / 2", "thred / 2")
    assert "thred" in str(judge("09.1", broken)) and "3 |" in str(judge("09.1", broken))
    missing = judge("09.1", "enum { TM = 4, TN = 4 };")
    assert not missing.solved and "row_of" in str(missing)


def test_loads_that_set_out_early_must_be_those_of_a_tile():
    naive = solution("01.1").replace("void naive", "void tiled")
    assert judge("10.1", naive).lines[-1] == "no tile is kept in shared memory"
    beyond = solution("10.1").replace("k1 + tx < K", "k0 + tx < K")
    assert "past its end" in judge("10.1", beyond).lines[-1]


def test_a_second_buffer_that_is_not_used_leaves_a_race():
    same = solution("11.1").replace("now ^= 1", "now ^= 0")
    assert "but by luck: read-write-race" in judge("11.1", same).lines[1]


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_barrier_is_refused_although_the_result_is_right(which):
    before, *after = re.split(r"__syncthreads\(\);", solution("02.1"))
    assert len(after) == 2
    after[1 - which] = "__syncthreads();" + after[1 - which]
    verdict = judge("02.1", before + "".join(after))
    assert not verdict.solved and "but by luck: read-write-race" in verdict.lines[1]
    assert "either may come first" in verdict.lines[2]


def test_a_barrier_that_some_threads_leave_before_is_refused():
    early = "if (row >= M || col >= N) return;\n    float sum = 0.0f;"
    assert not judge("02.1", solution("02.1").replace("float sum = 0.0f;", early)).solved


def test_an_unknown_exercise_is_refused_with_those_that_exist():
    for name in ("99.9", None, ["00.1"]):
        with pytest.raises(KeyError, match=r"00\.1"):
            judge(name, "")
