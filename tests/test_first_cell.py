"""The first cell of a notebook: elsewhere nothing; on Colab it brings the book and enters it."""

import json
import os
import subprocess
import sys
from unittest import mock

import colab
import pytest

from sgemm_lab import book

# A kernel of Colab's that runs a cell several times, each time from another folder.
KERNEL = """\
import json, os, sys, types

sys.modules["google.colab"] = types.ModuleType("google.colab")
cell, *folders = json.load(sys.stdin)
for folder in folders:
    os.chdir(folder)
    exec(cell, {})
import sgemm_lab
print(os.getcwd(), os.path.dirname(sgemm_lab.__file__), sys.path.count(sys.path[0]))
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A small book, bare: on main, and at a tag what it was before."""
    tree = tmp_path_factory.mktemp("repository") / "tree"
    for name in ("book/page.md", "sgemm_lab/__init__.py"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).touch()
    colab.git("init --quiet --initial-branch main", tree)
    for state, then in (("of the tag", "tag release/1"), ("of main", "status")):
        (tree / "sgemm_lab" / "doctor.py").write_text(f"def card():\n    return {state!r}\n")
        colab.git("add --all", tree)
        colab.git("commit --quiet --message", tree, state)
        colab.git(then, tree)
    return colab.bare(tree)


@pytest.fixture
def content(tmp_path):
    """The empty folder in which a notebook begins on Colab."""
    folder = tmp_path / "My Drive"
    folder.mkdir()
    return folder


def cell(revision="main", address=colab.ADDRESS) -> str:
    with (
        mock.patch.object(book, "repository", return_value=address),
        mock.patch.object(book, "revision", return_value=revision),
    ):
        return book.colab_cell().source


def kernel(content, repository, *, source=None, folders=(".",), **variables):
    """What such a kernel, which begins in `content`, puts out when it fetches from `repository`."""
    return subprocess.run(
        [sys.executable, "-c", KERNEL], cwd=content, text=True, capture_output=True,
        input=json.dumps([source or cell(), *map(str, folders)]),
        env=os.environ | colab.served(repository) | variables,
    )  # fmt: skip


def entered(content, name, card, times=1) -> str:
    """What it puts out when all went well."""
    clone = content / name
    return f"{card}\n" * times + f"{clone / 'book'} {clone / 'sgemm_lab'} 1\n"


def left(content) -> list[str]:
    return sorted(path.name for path in content.iterdir())


def test_elsewhere_it_does_nothing():
    for source in (cell(), cell(address=None)):
        names = {}
        exec(source, names)
        assert set(names) - {"__builtins__"} == {"sys"}


def test_without_an_address_it_says_so(content, repository):
    done = kernel(content, repository, source=cell(address=None))
    assert "python -m sgemm_lab repo https://" in done.stderr.splitlines()[-1]
    assert left(content) == []


def test_it_is_as_short_as_every_cell_and_installs_nothing():
    assert max(len(each.splitlines()) for each in (cell(), cell(address=None))) <= book.MAX_LINES
    assert "pip" not in cell()


def test_it_fetches_the_book_once_and_enters_it_wherever_it_is_run(content, repository):
    first = kernel(content, repository, folders=(".", ".", content, content.parent))
    assert first.stdout == entered(content, "a-book-main", "of main", times=4)
    restarted = kernel(content, content / "not there")
    assert restarted.stdout == entered(content, "a-book-main", "of main")
    assert left(content) == ["a-book-main"]


def test_it_fetches_no_more_than_one_commit(content, repository):
    kernel(content, repository)
    assert colab.git("rev-list --count HEAD", content / "a-book-main") == "1\n"


def test_a_release_gets_its_own_tag_also_beside_main(content, repository):
    for revision, name, card in (
        ("main", "a-book-main", "of main"), ("release/1", "a-book-release-1", "of the tag"),
    ):  # fmt: skip
        done = kernel(content, repository, source=cell(revision))
        assert done.stdout == entered(content, name, card)


KILLED = """#!/bin/sh
for folder; do :; done
mkdir -p "$folder/book" && kill -9 $$
"""


def test_half_a_clone_is_never_entered(content, repository, tmp_path):
    (tmp_path / "git").write_text(KILLED)
    (tmp_path / "git").chmod(0o755)
    done = kernel(content, repository, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode and left(content) == ["a-book-main.part"]
    done = kernel(content, repository)
    assert done.stdout == entered(content, "a-book-main", "of main")
    assert left(content) == ["a-book-main"]


@pytest.mark.parametrize("there, revision, said", [
    (False, "main", "does not appear to be a git repository"),
    (True, "v9", "Remote branch v9 not found"),
])  # fmt: skip
def test_what_cannot_be_fetched_is_told_with_gits_own_words(
    content, repository, there, revision, said
):
    done = kernel(
        content, repository if there else content / "not there", source=cell(revision), LC_ALL="C"
    )
    told = f"RuntimeError: {colab.ADDRESS} can't be fetched. Run it again. Git says: "
    assert told in done.stderr and said in done.stderr.partition(told)[2]
    assert left(content) == []
