import html
import re

import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.show import source


def shown_lines(bundle):
    rows = re.search(r"<pre>(.*)</pre>", bundle.html, re.S)[1]
    return [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows.split("\n</span>")[:-1]]


@pytest.mark.parametrize("step", [1, 2])
def test_the_whole_file_is_shown_and_nothing_else(step):
    bundle = source.show(step)
    assert shown_lines(bundle) == ladder[step].source.splitlines()
    assert [line[2:] for line in bundle.text.splitlines()[2:]] == ladder[step].source.splitlines()


def test_new_lines_are_those_that_the_other_file_lacks():
    bundle = source.show(2, since=1)
    before = {line.strip() for line in ladder[1].source.splitlines()}
    plain = bundle.text.splitlines()[2:]
    assert any(line.startswith("+") for line in plain)
    for line in plain:
        if line[2:].strip() and line[2:].strip() not in before:
            assert line.startswith("+ ")
    assert bundle.html.count('class="new"') == sum(line.startswith("+") for line in plain)


def test_nothing_is_new_since_the_file_itself():
    assert "0 are new" in source.show(2, since=2).text
    assert 'class="new"' not in source.show(2, since=2).html


def test_a_variant_says_how_it_is_compiled():
    assert "-DTILE=16" in source.show(ladder[2](TILE=16)).text


def test_a_folded_source_is_one_line_that_opens():
    assert "<details><summary>kernels/01_naive.cu" in source.show(1, fold=True).html
    assert "<details>" not in source.show(1).html


def test_cublas_has_no_source():
    with pytest.raises(ValueError, match="no source"):
        source.show(0)


def test_a_diff_has_the_lines_that_go_and_those_that_come():
    bundle = source.diff(9, 10)
    old, new = (ladder[n].source.splitlines() for n in (9, 10))
    plain = bundle.text.splitlines()
    gone = [line[1:] for line in plain if line.startswith("-") and not line.startswith("---")]
    come = [line[1:] for line in plain if line.startswith("+") and not line.startswith("+++")]
    assert gone and come and not set(gone) - set(old) and not set(come) - set(new)
    assert f"{len(gone)} lines go, {len(come)} come" in bundle.text
    assert bundle.html.count('class="old"') == len(gone)
    assert bundle.html.count('class="new"') == len(come)
    for number, line in re.findall(r'class="new" data-n="(\d+)">(.*?)\n</span>', bundle.html):
        words = html.unescape(re.sub(r"<[^>]+>", "", line))
        assert words == new[int(number) - 1]


def test_a_file_does_not_differ_from_itself():
    assert source.diff(3, 3).text == (
        "kernels/03_index_in_register.cu → kernels/03_index_in_register.cu: 0 lines go, 0 come"
    )
    with pytest.raises(ValueError, match="no source"):
        source.diff(0, 1)


MINE = """
// my own
extern "C" __global__ void naive(int M) {
      float sum = 0.0f;
}
"""


def test_a_text_of_ones_own_is_compared_without_comments_and_indents():
    bundle = source.diff(1, MINE)
    assert bundle.text.startswith("kernels/01_naive.cu → your kernel.cu: ")
    plain = bundle.text.splitlines()[2:]
    assert "         float sum = 0.0f;" in plain  # the same, however it is indented
    assert '+extern "C" __global__ void naive(int M) {' in plain
    assert not any("//" in line for line in plain)
    new = re.findall(r'class="new" data-n="(\d+)">(.*?)\n</span>', bundle.html)
    assert [number for number, _ in new] == ["3"]  # as the lines of the text are numbered
    shown = html.unescape(re.sub(r"<[^>]+>", "", bundle.html))
    assert "// A: [M][K], B: [K][N]" in shown and "my own" not in shown
    assert source.diff(MINE, MINE.replace("// my own", "")).text.endswith(": 0 lines go, 0 come")


def test_a_text_of_ones_own_is_shown_and_what_is_no_text_is_refused():
    assert "your kernel.cu, 5 lines" in source.show(MINE).text
    assert "+       float sum" not in source.show(MINE, since=MINE).text
    for wrong in (None, b"text", 1.5):
        with pytest.raises(TypeError, match="neither a step nor the text of a kernel"):
            source.diff(1, wrong)


def test_changes_has_a_pane_for_each_pair_of_neighbours_and_works_without_python():
    shown = source.changes(9)
    head, selector, stack = shown.widget.children
    assert [value for _, value in selector.options] == list(range(2, len(ladder)))
    assert selector.value == 9 and stack.children[stack.selected_index] is shown.panes[9,]
    styles = re.compile("<style>.*?</style>", re.S)
    assert shown.panes[9,].value == styles.sub("", source.diff(8, 9).html)
    assert set(styles.findall(source.diff(8, 9).html)) <= set(styles.findall(head.value))
    (link,) = shown.widget.links
    assert link.source == (selector, "index") and link.target == (stack, "selected_index")
    assert source.diff(8, 9).text.splitlines()[0] in shown.text
    with pytest.raises(ValueError, match=f"step=1: choose one from 2 to {len(ladder) - 1}"):
        source.changes(1)
