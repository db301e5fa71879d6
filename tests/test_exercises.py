"""Every exercise: its skeleton is refused for the reason that it is about, its folded solution
gets gold, typical mistakes are refused at the right stage; and whatever a reader writes gets a
verdict."""

import json
import re
import sys
from functools import partial

import numpy as np
import pytest

from sgemm_lab import book, ladder
from sgemm_lab.__main__ import main
from sgemm_lab.learn import exercises, magic, timing
from sgemm_lab.learn import judge as judging
from sgemm_lab.learn.exercises import EXERCISES, exercise, given, hint, judge

SOLUTION = re.compile(r"<summary>Solution</summary>\s*```cuda\n(.*?)```", re.S)


def found():
    """{name: (skeleton, solution)} as the notebooks have them."""
    texts = {}
    for path in book.notebooks():
        cells = book.read(path).cells
        for number, cell in enumerate(cells):
            if asked := re.match(r"%%kernel (\S+)(\n.*)", cell.source, re.S):
                texts[asked[1]] = asked[2], SOLUTION.search(cells[number + 1].source)[1]
    return texts


FOUND = found()
each = pytest.mark.parametrize("name", FOUND)


def skeleton(name):
    return FOUND[name][0]


def solution(name):
    return FOUND[name][1]


def edited(text, *changes):
    """The text with each (old, new) replaced, where old must stand."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def stage(verdict):
    """The medal at which a verdict stops."""
    return next((medal for medal, mark, _ in verdict.stages if mark == "✗"), None)


def test_every_exercise_stands_in_a_notebook_and_every_chapter_has_one():
    assert sorted(FOUND) == sorted(EXERCISES)
    chapters = {path.stem[:2] for path in book.notebooks() if path.stem[:2].isdecimal()}
    assert chapters == {name[:2] for name in EXERCISES if name[0] != "E"}
    assert [name for name in EXERCISES if name[0] == "E"] == [f"E.{n}" for n in range(1, 7)]


def test_every_notebook_shows_what_its_exercise_asks_before_the_kernel():
    for path in book.notebooks():
        sources = [cell.source for cell in book.read(path).cells]
        for number, source in enumerate(sources):
            if asked := re.match(r"%%kernel (\S+)\n", source):
                assert f'exercise("{asked[1]}")' in sources[number - 2 : number]


SKELETONS = {
    "00.1": ("bronze", r"case 2 of 5, n = 1: .*line 4 of .* reads x\[1\], past its end"),
    "01.1": ("bronze", r"C\[0, 8\] was never written"),
    "02.1": ("bronze", r"1×1×1: .*reads A\[1, 0\] \(or A\[0, 1\], the same place\), past its end"),
    "03.1": ("gold", r"each element of C: 129; 2 would be a step, the goal is at most 1"),
    "04.1": (
        "gold",
        r"loads: 196,608 \(line 13: 9 wavefronts a load\); the goal is none\n"
        r".*stores: 28,672 \(line 11: 8 wavefronts a store\); the goal is none\n.*✓ shared loads",
    ),
    "05.1": ("bronze", r"reads Bs\[16\]\[0\], which no thread of the block has written"),
    "06.1": ("bronze", r"9×127: .*x\[1, 0\], which is not a multiple of 16 bytes"),
    "07.1": ("gold", r"0\.5\d+; 0\.5 would be a step, the goal is at most 0\.4\n.*✗ shared loads"),
    "08.1": ("gold", r"✗ wavefronts .*0\.5\d+; the goal is at most 0\.35\n.*✓ shared loads"),
    "09.1": ("gold", r"0\.369; the goal is at most 0\.25"),
    "10.1": ("gold", r"on the first has begun: 4; the goal is at most 2"),
    "11.1": ("gold", r"barriers at which a warp waits for 8 tiles: 16; the goal is at most 9"),
    "E.1": ("gold", r"touches: 32\.0 \(line 9: 32 sectors a load\); the goal is at most 4\.0"),
    "E.2": ("gold", r"✗ bank conflicts of shared loads: [\d,]+ \(line 11: 32 wavefronts a load\)"),
    "E.3": ("gold", r"barriers at which a warp waits for 4 tiles: 8; the goal is none"),
    "E.4": ("bronze", r"C\[0, 16\] was never written"),
    "E.5": (
        "bronze",
        r"reads C\[0, 0\], which nobody.*\n.*\n +so C\[0, 0\] is nan.*\n.* NaN is NaN",
    ),
    "E.6": ("gold", r"touches: 18\.0 \(line 10: 32 sectors a load\); the goal is at most 4\.0"),
}


@each
def test_the_skeleton_is_refused_for_the_reason_that_the_exercise_is_about(name):
    verdict = judge(name, skeleton(name))
    at, says = SKELETONS[name]
    assert (stage(verdict), verdict.solved) == (at, False)
    assert re.search(says, str(verdict)), str(verdict)


@each
def test_the_solution_gets_gold_and_needs_half_of_what_it_may(name, monkeypatch):
    monkeypatch.setattr(judging, "MOST_EXECUTED", judging.MOST_EXECUTED // 2)
    monkeypatch.setattr(judging, "MOST_PTX", judging.MOST_PTX // 2)
    verdict = judge(name, solution(name))
    assert verdict.medal == "gold" and verdict.solved, str(verdict)


THREAD = "(threadIdx.y * 32 + threadIdx.x)"
EARLY = ("float sum = 0.0f;", "if (row >= M || col >= N) return;\n    float sum = 0.0f;")
APART = """float b = Bs[k][tx];
            for (int i = 0; i < 2; ++i) sums[i] += As[ty + 16 * i][k] * b;"""
TWICE = """sums[0] += As[ty][k] * Bs[k][tx];
        }
        __syncthreads();
        for (int k = 0; k < 32; ++k) {
            sums[1] += As[ty + 16][k] * Bs[k][tx];"""
APART_ADD = "sums[i] = __fadd_rn(sums[i], __fmul_rn(As[ty + 16 * i][k], b))"
FOURS = "n / 4 * 32 + thread % 8 * 4 + n % 4"
NAIVE = ("void naive", "void tiled")
AGAIN = "factor * x[i] + 0 * *(volatile const float*)&x[n - 1 - i]"
NO_BETA = ("alpha * sum + beta * *c", "alpha * sum")
SYNC = "__syncthreads();"
WARP = "__syncwarp();"
NO_TILE = r"✗ global load requests for .*: 2; the goal is at most 0\.25"
_EACH, _BOTH = "    if (row < M", "    for (int i = 0; i < 2; ++i, {} += 16) if (row < M"
TWO_ROWS, TWO_COLUMNS = (  # of a kernel without a tile
    [("void naive", "void coarse"), (f"{each} * blockDim.{each[-1]}", f"{each} * 32"),
     (_EACH, _BOTH.format(index))]
    for each, index in (("blockIdx.y", "row"), ("blockIdx.x", "col"))
)  # fmt: skip
STRAIGHT = [("tile[i][tx ^ i]", "y[(size_t)(c0 + tx) * rows + r0 + i]"),
            ("c0 + i < cols && r0 + tx < rows", "false")]  # fmt: skip

# (exercise, whose solution is taken, what is changed in it, where it stops, what is said)
MISTAKES = [
    ("00.1", "00.1", [("i < n", "i <= n")], "bronze", r"n = 1: .*reads x\[1\], past its end"),
    ("00.1", "00.1", [("i < n", "i < n - 1")], "bronze", r"y\[255\] was never written"),
    ("00.1", "00.1", [("factor * x[i]", "x[i]")], "bronze", "should be .*: x itself"),
    ("00.1", "00.1", [("factor * x[i]", AGAIN)],
     "gold", "sectors loaded for 1000 elements: 250; the goal is at most 125"),
    ("01.1", "01.1", [("Dim.y + threadIdx.y", f"Dim.y + {THREAD} % 8"),
                      ("Dim.x + threadIdx.x", f"Dim.x + {THREAD} / 8")],
     "gold", r"touches: 4\.5 \(line 9: 4\.5 sectors a load\); the goal is at most 2\.5"),
    ("01.1", "01.1", [NO_BETA], "bronze", "beta times what was there is left out"),
    ("01.1", "01.1", [("k < K", "k < K - 1")], "bronze", "of 96 products, only the first 95"),
    ("01.1", "01.1", [("int k = 0", "int k = 1")], "bronze", "96 products, all but the first\n"),
    ("01.1", "01.1", [("(size_t)k * N + col", "(size_t)col * K + k")],
     "bronze", "as if B were stored column by column"),
    ("01.1", "01.1", [("(size_t)row * K", "(size_t)row * M")],
     "bronze", "as if the rows of A had M elements"),
    ("01.1", "01.1", [("? alpha * sum", "? (K ? alpha * sum : 1.0f)")],
     "bronze", r"×0 \(nothing to add up, yet the result must be .*\): .*is 1 and should be 0\n"),
    ("02.1", "01.1", [NAIVE], "gold", "262,144; the goal is at most 65,536"),
    ("02.1", "02.1", [EARLY], "bronze", r"reaches, since that one has returned .*part at line 7\)"),
    ("03.1", "03.1", [("float sum = 0.0f", "float sum = beta * *c")], "bronze", "is nan"),
    ("03.1", "03.1", [("alpha * sum", "sum")], "bronze", "alpha is left out"),
    ("04.1", "04.1", [("PAD 2", "PAD 1")],
     "gold", r"stores: 4,096 \(line 10: 2 wavefronts a store\); the goal is none"),
    ("04.1", "04.1", [("As[ty][k] * Bs[tx][k]", "As[ty][k] * Bs[k][tx]")],
     "bronze", "as if each 16×16 tile of B were transposed"),
    ("04.1", "04.1", [("PAD 2", "PAD 0"), ("Bs[tx][ty]", "Bs[ty][tx]"), ("Bs[tx][k]", "Bs[k][tx]")],
     "gold", r"✗ shared loads for .*: 1\.25; the goal is at most 0\.75"),
    ("04.1", "01.1", [NAIVE], "gold", NO_TILE),
    ("05.1", "05.1", [(APART, TWICE)], "gold", r"1\.5; the goal is at most 1"),
    ("05.1", "01.1", TWO_ROWS, "gold", NO_TILE),
    ("05.1", "05.1", [("r >= M || ", "")], "bronze", "past its end"),
    ("05.1", "05.1", [("sums[i] += As[ty + 16 * i][k] * b", APART_ADD)],
     "gold", "multiply-add of a warp: not one was executed"),
    ("06.1", "06.1", [("cols % 4 == 0", "col + 4 <= cols")], "bronze", "not a multiple of 16"),
    ("06.1", "06.1", [("cols % 4 == 0", "false")], "gold", "512; the goal is at most 128"),
    ("07.1", "07.1", [("/ 8 * 4 + m", "/ 8 + 8 * m"), ("% 8 * 4 + n", "% 8 + 8 * n")],
     "gold", r"0\.4\d+; the goal is at most 0\.4\n"),
    ("07.1", "07.1", [("TM = 4, TN = 4", "TM = 8, TN = 2"), ("/ 8 * 4 + m", "/ 16 * 8 + m"),
                      ("% 8 * 4 + n", "% 16 * 2 + n")],
     "gold", r"✗ shared loads for .*: 0\.185; the goal is at most 0\.125"),
    ("07.1", "07.1", [("thread % 8 * 4", "thread % 8 * 3")], "bronze", "was never written"),
    ("08.1", "08.1", [(FOURS, "n * 8 + thread % 8")], "gold", r"0\.277; the goal is at most 0\.1$"),
    ("08.1", "08.1", [(FOURS, "n / 4 * 32 + thread % 8 * 4")], "bronze", "was never written"),
    ("09.1", "09.1", [("thread % 2", "thread / 16"), ("thread / 2", "thread % 16")],
     "gold", r"0\.369; the goal is at most 0\.25"),
    ("09.1", "09.1", [("thread / 2", "thread / 4")], "bronze", "was never written"),
    ("10.1", "01.1", [NAIVE], "gold", "has begun: [0-9]+; the goal is at most 2"),
    ("10.1", "10.1", [("k1 + tx < K", "k0 + tx < K")], "bronze", "past its end"),
    ("10.1", "10.1", [("k1 = k0 + TILE", "k1 = k0")],
     "bronze", "of 48 products, the first 16 twice and not the last 16"),
    ("11.1", "11.1", [("now ^= 1", "now ^= 0")], "silver", f"a round before, and no {SYNC[:-1]}"),
    ("11.1", "11.1", [(SYNC, "")], "silver", f"and no {re.escape(SYNC[:-1])} lies between"),
    ("11.1", "01.1", [NAIVE], "gold", NO_TILE),
    ("E.1", "E.1", [("step = 16", "step = 8")], "bronze", "the sums of the first 16 lanes only"),
    ("E.1", "E.1", [("    if (lane == 0)\n", "")], "bronze", "elements are wrong"),
    ("E.1", "E.1", [("    for (int step", "    if (lane < K)\n    for (int step")],
     "silver", "9×31: .*takes the value of lane 31 of its warp, which is not there"),
    ("E.1", "E.1", [("    float sum", "    if (lane >= K) return;\n    float sum")],
     "bronze", r"1×1: .* of lane 16 of .*\n.*\n +so y\[0\] is .*; 1 of 1 elements is wrong"),
    ("E.2", "E.2", [("[32][32]", "[32][33]"), ("tx ^ i", "tx"), ("i ^ tx", "i")],
     "gold", "bytes of shared memory: 4,224; the goal is at most 4,096"),
    ("E.2", "E.2", [("i ^ tx", "i")], "bronze", "elements are wrong"),
    ("E.2", "E.2", STRAIGHT, "gold", r"a global store touches: 32\.0 \(line 6: 32 sectors a store"),
    ("E.3", "E.3", [(WARP, "")], "silver", r"no __syncwarp\(\) or __syncthreads\(\) lies between"),
    ("E.3", "E.3", [(f"        {WARP}\n    }}", "    }")],
     "silver", "a round before, and no __syncwarp"),
    ("E.4", "E.4", [("2 * tx + i", "tx + 16 * i")], "gold", r"1\.12; the goal is at most 0\.7\n"),
    ("E.4", "E.4", [("|| col >= N", "")], "bronze", r"past its end|C\[1, 0\]"),
    ("E.4", "01.1", TWO_COLUMNS, "gold", NO_TILE),
    ("E.5", "E.5", [("alpha != 0.0f", "true"), ("alpha == 0.0f", "false")],
     "bronze", r"alpha=0, beta=3: .*reads [AB]\[0, 0\], which nobody has written"),
    ("E.5", "E.5", [("alpha != 0.0f", "true"), ("alpha == 0.0f", "false"),
                    ("alpha * sum", "(alpha != 0.0f ? alpha * sum : 0.0f)")],
     "gold", "alpha 0 and beta 0: [1-9]"),
    ("E.5", "E.5", [("&& beta == 1.0f", "")], "bronze", "alpha=0, beta=3: .*was never written"),
    ("E.6", "E.6", [("[32][33]", "[32][32]")],
     "gold", r"458,752 \(line 12: 17 wavefronts a load\); the goal is none"),
    ("E.6", "E.6", [("[32][33]", "[32][32]"), ("Bs[tx][k]", "Bs[k][tx]")],
     "bronze", "as if each 32×32 tile of B were transposed"),
    ("E.6", "02.1", [("TILE 16", "TILE 32")], "bronze", "as if B were stored column by column"),
]  # fmt: skip


def test_every_exercise_has_two_typical_mistakes():
    names = [name for name, *_ in MISTAKES]
    assert all(names.count(name) >= 2 for name in EXERCISES)


@pytest.mark.parametrize(
    "name, source, changes, at, says", MISTAKES, ids=[f"{m[0]}-{n}" for n, m in enumerate(MISTAKES)]
)
def test_a_typical_mistake_is_refused_at_its_stage_and_named(name, source, changes, at, says):
    verdict = judge(name, edited(solution(source), *changes))
    assert stage(verdict) == at, str(verdict)
    assert re.search(says, str(verdict)), str(verdict)


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_barrier_gets_bronze_and_no_silver_although_the_result_is_right(which):
    before, *after = solution("02.1").split(SYNC)
    assert len(after) == 2
    after[1 - which] = SYNC + after[1 - which]
    verdict = judge("02.1", before + "".join(after))
    assert (verdict.medal, stage(verdict)) == ("bronze", "silver")
    assert "no __syncthreads() lies between: either may come first" in str(verdict)
    assert ("a round before" in str(verdict)) == (which == 1)


def test_a_promise_that_nothing_overlaps_passes_the_first_mark_only():
    promised = edited(skeleton("03.1"), ("* C", "* __restrict__ C"))
    assert "stores of each element of C: 2; the goal is at most 1" in str(judge("03.1", promised))


def test_a_cause_is_named_only_if_it_explains_every_wrong_element():
    for factor, causes in (("2", 1), ("0", 1), ("(row % 2 ? 2 : 0)", 0)):
        text = edited(solution("01.1"), ("alpha * sum", f"{factor} * alpha * sum"))
        assert (
            len(re.findall("the sum is (?:missing|counted twice)", str(judge("01.1", text))))
            == causes
        )


def test_a_part_of_a_kernel_is_judged_with_what_is_given_and_its_lines_keep_their_numbers():
    assert "sums[m][n] += As[k][row_of(thread, m)]" in given("09.1").source
    broken = edited(solution("09.1"), ("thread / 2", "thred / 2"))
    assert "thred" in str(judge("09.1", broken)) and "3 |" in str(judge("09.1", broken))
    missing = judge("09.1", "enum { TM = 4, TN = 4 };")
    assert not missing.medal and "row_of" in str(missing)


@pytest.mark.parametrize("before", ["", "\n", "%%kernel 09.1\n"])
def test_what_goes_wrong_in_what_is_given_is_named_and_quoted_as_it_is_shown(before):
    shown = given("09.1").source.splitlines()
    line = next(n for n, row in enumerate(shown, 1) if "sums[m][n] +=" in row)
    wild = before + edited(solution("09.1"), ("thread % 2", "thread * 400"))
    says = str(judge("09.1", wild))
    assert f"line {line} of given.cu" in says and f" {line} | sums[m][n]" in says
    assert "lies outside of the tile" in says
    undefined = str(judge("09.1", f"{before}enum {{ TM = 4, TN = 4 }};"))
    assert f"given.cu, line {line}: " in undefined and f">  {line} | " in undefined


# --- what stays the same, and what must not -------------------------------------------------------


@pytest.mark.parametrize("name, text", [
    ("01.1", skeleton("01.1")), ("05.1", skeleton("05.1")), ("E.5", skeleton("E.5")),
    ("E.3", edited(solution("E.3"), (WARP, ""))), ("00.1", solution("00.1")),
])  # fmt: skip
def test_the_same_kernel_hears_the_same_verdict(name, text):
    first = judge(name, text)
    assert all(judge(name, text) == first and str(judge(name, text)) == str(first) for _ in "12")
    assert first._repr_html_() == judge(name, text)._repr_html_()


def by_heart():
    """A kernel that has learnt the numbers that are tried first."""
    problem = EXERCISES["00.1"].problem
    longest = max(problem.cases, key=lambda case: case["n"])
    known = judging._try(problem, f"\n{solution('00.1')}", longest).values.x
    for case in problem.cases:
        seen = judging._try(problem, f"\n{solution('00.1')}", case).values.x
        assert np.array_equal(seen, known[: len(seen)])
    table = ", ".join(str(int(x)) for x in known)
    return edited(
        f"__device__ const float known[] = {{{table}}};\n{solution('00.1')}",
        ("factor * x[i]", "factor * known[i]"),
    )


def test_a_kernel_that_has_learnt_the_first_numbers_by_heart_is_found_out():
    verdict = judge("00.1", by_heart())
    assert not verdict.medal and "wrong on others" in str(verdict)


def test_a_kernel_that_drops_the_sign_is_right_on_the_first_numbers_only():
    verdict = judge("00.1", edited(solution("00.1"), ("x[i]", "fabsf(x[i])")))
    assert not verdict.medal and "wrong on others" in str(verdict)


def test_what_is_counted_is_drawn_anew_at_every_try(monkeypatch):
    counted, real = [], judging.profile

    def watched(code, name, grid, block, args, **how):
        counted.append(args[2].copy())
        return real(code, name, grid, block, args, **how)

    monkeypatch.setattr(judging, "profile", watched)
    for _ in "12":
        assert judge("00.1", solution("00.1")).solved
    assert len(counted) == 2 and not np.array_equal(*counted)


# --- readers who try everything -------------------------------------------------------------------

HEAD = 'extern "C" __global__ void scale(int n, float f, const float* x, float* y) {\n'
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
MORE = "template <int N> __device__ float more(float x) { return more<N + 1>(x); }\n"


@pytest.mark.parametrize("code, says", [
    ("", "the text is empty"),
    (" \n%%kernel 00.1\n", "the text is empty"),
    ("// nothing yet", "no kernel named 'scale'"),
    ("int x", "does not compile"),
    (None, r"a kernel is a text in CUDA C\+\+; this is None"),
    (b"void f() {}", r"this is b'void f\(\) \{\}' \(bytes\)"),
    (ladder[1], "a kernel is a text"),
    ("/" * 70_000, "the text has 70,000 characters; judge reads 65,536"),
    (f"{HEAD}\0}}", "line 2 holds the character '.x00', which no compiler reads"),
    (f"{HEAD}// \ud800\n}}", "line 2 holds the character"),
    (f"{HEAD}{'(' * 60_000}", r"expected an expression\n(.*\n)* +… and \d+ lines more"),
    (f"{HEAD}{'x' * 5000} = 1; }}", r"2 \| x{300,}…"),
    ('extern "C" __global__ void other(int n) {}', "no kernel named 'scale'"),
    (HEAD.replace('extern "C" ', "") + "}", 'put extern "C" before'),
    ('extern "C" __global__ void scale(int n) {}', r"takes 1 arguments.*\n.*exercise passes \(int"),
    (HEAD.replace("float f", "double f") + "}", r"f is a double.*\n.*exercise passes \(int n"),
    ('extern "C" __global__ void scale(const float* x, float* y, int n, float f) {}',
     "the exercise passes"),
    (f"{HEAD}y[0] = f * x[0]; }}", r"y\[1\] was never written"),
    (f"{HEAD}((float*)x)[threadIdx.x % n] = f; }}", "x was written to; the result belongs into y"),
    (f"{HEAD}y[(int)threadIdx.x - 5] = f; }}", r"writes .* before its beginning"),
    (f"{HEAD}*(float*)8 = f; }}", "address 0x8, which belongs to no array"),
    (f"{HEAD}for (size_t j = 0; ; ++j) y[j] = f; }}", r"writes y\[256\], past its end"),
    (f"{HEAD}while (true) ; }}", "does its loop ever end|was never written"),
    (f"{HEAD}while (true) __syncthreads(); }}", "15,000 instructions; does its loop ever end"),
    (f"{HEAD}for (volatile int j = 0; ; ++j) ; }}", "does its loop ever end.*\n.*2 | for"),
    (f'{HEAD}asm("trap;"); }}', r"executes a trap\n +2 \| asm"),
    (f'{HEAD}asm("hcf;"); }}', "hcf"),
    (f"{HEAD}if (threadIdx.x) __syncthreads(); }}", "was never written"),
    (f'{HEAD}printf("%d", n); }}', "printf is not covered.*\n.*judge compares what is"),
    (f"#include <vector>\n{HEAD}}}", r'"vector"(.*\n)+.*Take the #include out'),
    (f"{HEAD}__shared__ float s[25600]; s[n] = f; y[0] = s[0]; }}",
     "needs 102,400 bytes of shared memory; here it may have 49,152"),
    (f"{HEAD}float a[1 << 26]; for (int j = 0; j < n; ++j) a[j * 7] = f; y[0] = a[n]; }}",
     "a thread needs 268,435,456 bytes for arrays of its own; here it may have 16,384"),
    (f"extern __shared__ float s[];\n{HEAD}s[threadIdx.x] = f; y[0] = s[0]; }}",
     "the block has 0 bytes of it.*\n.*\n.*without dynamic shared memory"),
    ("__device__ __noinline__ float g(float x, int n) { return n < 1 ? x : g(x, n - 1) + x; }"
     f"\n{HEAD}y[0] = g(f, n); }}", "not inlined.*\n.*A function that calls itself"),
    (f"{HEAD}y[0] = *(float*)malloc(4); }}", "malloc"),
    (f"{MORE}{HEAD}y[0] = more<0>(f); }}", "recursi"),
    (f"{HEAD}float s = 0;\n#pragma unroll\nfor (int j = 0; j < 600; ++j) s = s * x[j ^ n] + j; "
     "y[0] = s; }", "instructions of it; judge reads .*Put #pragma unroll 1"),
    (f"{HEAD}y[0] = clock(); }}", r"no special register %clock.*\n.*must not depend on it"),
])  # fmt: skip
def test_whatever_a_reader_writes_gets_a_helpful_message_and_no_exception(code, says, monkeypatch):
    monkeypatch.setattr(judging, "MOST_PTX", 1500)  # or the compiler would take its time
    verdict = judge("00.1", code)
    assert not verdict.medal and stage(verdict) == "bronze"
    assert re.search(says, str(verdict)), str(verdict)
    assert "stumbled" not in str(verdict) and verdict._repr_html_()
    assert max(map(len, str(verdict).splitlines())) < judging._WIDTH + 20


def test_words_in_other_scripts_do_no_harm():
    assert judge("00.1", f"// größer, 更大, ≤ 中\n{solution('00.1')}").solved


def test_a_loop_without_end_in_a_product_is_told_at_the_first_case():
    verdict = judge("02.1", edited(solution("02.1"), ("k0 += TILE", "k0 += 0")))
    assert "case 1 of 16" in str(verdict) and "does its loop ever end" in str(verdict)


def test_a_compiler_that_does_not_come_back_is_left_alone(monkeypatch):
    monkeypatch.setattr(judging, "COMPILING", 0.05)
    blocked = judging.Thread
    monkeypatch.setattr(judging, "Thread", lambda target, daemon: blocked(target=lambda: None))
    verdict = judge("00.1", solution("00.1"))
    assert "the compiler is not done with it" in str(verdict) and stage(verdict) == "bronze"


def test_a_mistake_of_the_judge_is_a_verdict_too(monkeypatch):
    monkeypatch.setattr(judging, "_try", lambda *_, **__: 1 / 0)
    assert "judge itself stumbled over this kernel (ZeroDivisionError" in str(
        judge("00.1", HEAD + "}")
    )


def test_an_unknown_exercise_is_refused_with_those_that_exist():
    for name in ("99.9", None, ["00.1"]):
        for call in (partial(judge, code=""), exercise, hint, given):
            with pytest.raises(KeyError, match=r"00\.1"):
                call(name)


# --- what is asked, and hints ---------------------------------------------------------------------


@each
def test_an_exercise_has_hints_in_steps_and_its_card_folds_them(name):
    hints = EXERCISES[name].hints
    card = exercise(name)
    assert len(hints) >= 2 and card.html.count("<details>") == len(hints)
    assert all(goal.asks in card.text for goal in EXERCISES[name].goals)
    for number, text in enumerate(hints, 1):
        shown = hint(name, number)
        assert text.replace("`", "") in shown.text and f'hint("{name}", {number})' in card.text
        assert text.replace("`", "") not in card.text  # a card gives nothing away
    with pytest.raises(ValueError, match=f"has hints 1 to {len(hints)}"):
        hint(name, len(hints) + 1)


def test_a_verdict_is_escaped_where_html_is_shown():
    html = judge("00.1", f"{HEAD}y[0] <b>= 1; }}")._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;" in html


# --- the magic ------------------------------------------------------------------------------------


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    magic.register()
    yield shell
    InteractiveShell.clear_instance()


def test_a_kernel_cell_keeps_its_text_and_judges_it(shell):
    text = solution("00.1")
    verdict = shell.run_cell_magic("kernel", "00.1", text)
    assert verdict.solved and shell.user_ns["attempt"] == f"\n{text}"
    assert shell.run_cell_magic("kernel", "00.1 mine", text).solved
    assert shell.user_ns["mine"] == f"\n{text}"


def test_a_kernel_cell_without_an_exercise_says_what_it_keeps(shell, capsys):
    assert shell.run_cell_magic("kernel", "mine", solution("01.1")) is None
    assert capsys.readouterr().out == "mine: 13 lines with kernel naive\n"
    shell.run_cell_magic("kernel", "mine", "int x;")
    assert capsys.readouterr().out == "mine: 1 line without a kernel\n"


def test_lines_are_those_of_the_cell(shell):
    verdict = shell.run_cell_magic("kernel", "00.1", f'{HEAD}asm("trap;"); }}')
    assert '3 | asm("trap;"); }' in str(verdict)


@pytest.mark.parametrize("line", ["", "a b", "00.1 01.1", "5.1", "a-b", "class"])
def test_a_kernel_cell_that_asks_for_nothing_known_says_what_can_be_asked(shell, line):
    from IPython.core.error import UsageError

    with pytest.raises(UsageError, match="judges the text of this cell"):
        magic.kernel(line, "text")


def test_without_ipython_there_is_no_magic(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    magic.register()


# --- from the command line ------------------------------------------------------------------------


@pytest.mark.parametrize("text, leaves, says", [
    (skeleton("00.1"), 1, "no medal yet"), (solution("00.1"), 0, "gold"), (None, 2, "No such file"),
    ("\udcff", 2, "can't decode"),
])  # fmt: skip
def test_a_file_is_judged_from_the_command_line(text, leaves, says, tmp_path, capsys):
    file = tmp_path / "mine.cu"
    if text is not None:
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert main(["judge", "00.1", str(file)]) == leaves
    out, err = capsys.readouterr()
    assert says in (err if leaves == 2 else out)


def test_the_command_line_names_the_exercises_that_there_are(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["judge", "5.1", str(tmp_path)])
    assert "'05.1'" in capsys.readouterr().err


# --- on a GPU: the child process, played by others ------------------------------------------------

RUNS = [{"step": -1, "ms": {"median": 1.5}, "cublas_ms": {"median": 0.5}},
        {"step": 1, "ms": {"median": 2.0}, "cublas_ms": {"median": 0.5}}]  # fmt: skip


def child(text):
    return [sys.executable, "-c", text]


def judged_with(monkeypatch, text, seconds=60, name="01.1", code=None):
    monkeypatch.setattr(exercises, "gpu_available", lambda: True)
    monkeypatch.setattr(
        exercises, "timed", partial(timing.timed, child=child(text), seconds=seconds)
    )
    return judge(name, solution(name) if code is None else code)


def test_a_right_kernel_is_timed_beside_its_step_and_cublas(monkeypatch):
    reads = "import sys, json; job = json.load(sys.stdin); assert job['step'] == 1, job; print()"
    plays = f"{reads}\nprint({json.dumps(RUNS)!r})"
    verdict = judged_with(monkeypatch, plays)
    assert verdict.time == "On this GPU at N = 1024: your kernel 1.5 ms, step 1 2 ms, cuBLAS 0.5 ms"
    assert verdict.time in str(verdict) and verdict.time in verdict._repr_html_()
    assert verdict.solved


@pytest.mark.parametrize("plays, says", [
    ("import os; os.abort()", r"ended with exit code -6: .*This notebook goes on"),
    ("raise RuntimeError('an illegal memory access')", "exit code 1: RuntimeError: an illegal"),
    ("try: 1 / 0\nfinally: raise RuntimeError('late.\\n  | }')", "ZeroDivisionError: [^.]*. This"),
    ("import sys; sys.exit('no such device')", "exit code 1: no such device. This"),
    ("import time; time.sleep(60)", "not done after 0.5 seconds, and was ended"),
    ("print('nothing')", "could not be timed"),
    ("", "could not be timed"),
])  # fmt: skip
def test_a_child_that_dies_or_hangs_costs_nothing_but_the_time(plays, says, monkeypatch):
    verdict = judged_with(monkeypatch, plays, 0.5 if "sleep" in plays else 60)
    assert verdict.solved and re.search(says, verdict.time), verdict.time


def test_a_kernel_without_gold_or_of_another_interface_never_reaches_the_gpu(monkeypatch):
    refused = judged_with(monkeypatch, "raise SystemExit(9)", name="11.1", code=skeleton("11.1"))
    racing = edited(solution("11.1"), (SYNC, ""))
    races = judged_with(monkeypatch, "raise SystemExit(9)", name="11.1", code=racing)
    other = judged_with(monkeypatch, "raise SystemExit(9)", name="00.1")
    assert (refused.medal, races.medal, other.medal) == ("silver", "bronze", "gold")
    assert refused.time == races.time == other.time == ""


def test_the_child_measures_the_job_that_it_is_given(monkeypatch, capsys):
    from io import StringIO

    from sgemm_lab.measure import bench

    asked = []

    def measured(kernels, sizes):
        asked.extend(kernels)
        return bench.Bench(tuple(RUNS))

    monkeypatch.setattr(bench, "bench", measured)
    problem = EXERCISES["05.1"].problem
    job = {"own": ["text", problem.function, problem.block, problem.tile], "step": 5}
    monkeypatch.setattr(sys, "stdin", StringIO(json.dumps(job)))
    assert timing.main() == 0 and json.loads(capsys.readouterr().out) == RUNS
    mine, step = asked
    assert (mine.step.source, mine.block, mine.tile) == ("text", (32, 16), (32, 32, 32))
    assert step == ladder[5]()
