"""Every exercise: its skeleton is refused with a reason, its folded solution is accepted."""

import re

import pytest

from sgemm_lab import book
from sgemm_lab.learn.exercises import EXERCISES, judge

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
