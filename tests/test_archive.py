"""Where NVRTC is not to be had: everything of the book runs from what was compiled beforehand."""

import os
import subprocess
import sys

import pytest

from sgemm_lab import beforehand, book
from sgemm_lab.ladder import ladder
from sgemm_lab.paths import ARCHIVE, ROOT
from sgemm_lab.run import archive, nvrtc
from sgemm_lab.run.backend import ARCH

STEPS = [step for step in ladder if step.function]
ASKED = [each for step in STEPS for each in beforehand.questions(step)]
SETTINGS = [
    ("ptx", step.source, variant.options, ARCH) for step in STEPS for variant in step.variants()
]


@pytest.fixture
def without(tmp_path):
    """The variables of a process in which CuPy, and so NVRTC, cannot be imported."""
    (tmp_path / "cupy.py").write_text('raise ImportError("there is no CuPy here")')
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def said(command, variables):
    done = subprocess.run([sys.executable, *command], env=variables, cwd=ROOT, text=True,
                          capture_output=True)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_every_setting_of_every_step_is_in_it_with_the_kernels_as_they_are():
    missing = [each[2:] for each in ASKED if archive.find(nvrtc.key(*each)) is None]
    assert missing == [], "a kernel has changed since: python -m sgemm_lab run"
    assert set(SETTINGS) <= set(ASKED) and len(SETTINGS) > 100


def again(asked):
    """The answers that the archive has and that NVRTC gives now."""
    nvrtc.ask.cache_clear()
    return archive.find(nvrtc.key(*asked)), nvrtc.ask(*asked)


@pytest.mark.parametrize("asked", ASKED[::59], ids=lambda asked: f"{asked[0]} {asked[2:]}")
def test_some_answers_are_those_of_the_pinned_nvrtc(asked):
    if nvrtc.version() != archive.read()["nvrtc"]:
        pytest.skip(f"NVRTC here is {nvrtc.version()}")
    stored, now = again(asked)
    assert stored == now


@pytest.mark.slow
def test_all_answers_are_those_of_the_pinned_nvrtc():
    if nvrtc.version() != archive.read()["nvrtc"]:
        pytest.skip(f"NVRTC here is {nvrtc.version()}")
    both = {each: again(each) for each in ASKED}
    assert [each[2:] for each, (stored, now) in both.items() if stored != now] == []


def test_it_is_small():
    assert ARCHIVE.stat().st_size < 2_000_000


def test_a_chapter_runs_without_nvrtc_and_gives_the_committed_bytes(without):
    code, out, err = said(["-m", "sgemm_lab", "run", "--check", "03_index_in_register"], without)
    assert (code, err) == (0, "")
    assert out.startswith("1 notebooks, ")


@pytest.mark.slow
def test_every_chapter_runs_without_nvrtc_and_gives_the_committed_bytes(without):
    code, out, err = said(["-m", "sgemm_lab", "run", "--check"], without)
    assert (code, err) == (0, "")
    assert out.startswith(f"{len(book.notebooks())} notebooks, ")


AUDIT = """
from sgemm_lab import audit, cp, doctor, ladder
for number in {numbers}:
    assert audit(ladder[number], ["architectures", "coupling"]).ok
plain = cp.RawModule(code=ladder[2].source, options=("-DTILE=16",))
print(plain.get_function("tiled").name, doctor().way)
print(cp.RawModule(code=ladder[2].source + "// mine").get_function("tiled"))
"""


@pytest.mark.parametrize(
    "numbers",
    [[3], pytest.param([step.number for step in STEPS], marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_without_nvrtc_steps_are_audited_and_launched_and_ones_own_kernel_is_told_why_not(
    without, numbers
):
    code, out, err = said(["-c", AUDIT.format(numbers=numbers)], without)
    assert (code, out) == (1, "tiled archive\n")
    assert "NvrtcMissing: This kernel was not compiled beforehand." in err.splitlines()[-1]


def test_a_file_name_is_put_in_when_it_is_taken_out(monkeypatch):
    def none():
        raise nvrtc.NvrtcMissing

    with_nvrtc = [nvrtc.compile_ptx(*SETTINGS[0][1:], filename=name) for name in ("a.cu", "b.cu")]
    nvrtc.ask.cache_clear(), nvrtc._ptx.cache_clear()
    monkeypatch.setattr(nvrtc, "_nvrtc", none)
    without = [nvrtc.compile_ptx(*SETTINGS[0][1:], filename=name) for name in ("a.cu", "b.cu")]
    assert with_nvrtc == without and '"b.cu"' in without[1].text
    with pytest.raises(nvrtc.CompileError, match=r"mine\.cu, line \d+: static assert"):
        nvrtc.compile_ptx(ladder[2].source, ("-DTILE=64",), filename="mine.cu")


# -- keeping it up -------------------------------------------------------------------------------

CODE = "__global__ void f() {}  // kept up"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """An archive of its own, of two answers, and a ladder without steps."""
    monkeypatch.setattr(archive, "ARCHIVE", tmp_path / "archive")
    monkeypatch.setattr(beforehand, "ladder", [])
    archive.read.cache_clear()
    archive.write({"a": {"text": "1"}, "b": {"text": "2"}}, nvrtc.version())
    yield archive.ARCHIVE
    archive.read.cache_clear()


def test_what_is_compiled_is_recorded_also_in_other_processes():
    nvrtc.ask.cache_clear(), nvrtc._ptx.cache_clear()
    with beforehand.recorded() as found:
        nvrtc.compile_ptx(CODE)
        other = f"from sgemm_lab.run import nvrtc; nvrtc.report({CODE!r}, arch='sm_80')"
        subprocess.run([sys.executable, "-c", other], check=True)
    assert set(found) == {
        nvrtc.key("ptx", CODE, (), ARCH), nvrtc.key("report", CODE, (), "sm_80")
    }  # fmt: skip
    assert archive.KEEP not in os.environ


def test_check_says_what_is_lacking_and_writes_nothing(file):
    before = file.read_bytes()
    assert beforehand.keep_up({"a": {"text": "1"}}, whole=False, check=True) == []
    for lacking in ({"c": {"text": "3"}}, {"a": {"text": "other"}}):
        (said,) = beforehand.keep_up(lacking | {"b": {"text": "2"}}, whole=False, check=True)
        assert "1 of 2 are missing" in said and "python -m sgemm_lab run" in said
    assert file.read_bytes() == before


@pytest.mark.parametrize(("whole", "left"), [(False, {"a", "b", "c"}), (True, {"c"})])
def test_run_adds_what_notebooks_compile_and_all_of_them_replace_the_rest(file, whole, left):
    assert beforehand.keep_up({"c": {"text": "3"}}, whole, check=False) == []
    assert set(archive.read()["answers"]) == left


def test_the_same_answers_give_the_same_bytes(file):
    before = file.read_bytes()
    assert archive.write({"b": {"text": "2"}, "a": {"text": "1"}}, nvrtc.version()) is False
    file.unlink()
    archive.read.cache_clear()
    assert archive.write({"b": {"text": "2"}, "a": {"text": "1"}}, nvrtc.version()) is True
    assert file.read_bytes() == before


def test_run_check_fails_on_a_chapter_that_compiles_what_is_not_in_it(file, monkeypatch, capsys):
    path = book.find("03_index_in_register")

    async def executed(paths, timeout):
        nvrtc.ask.cache_clear(), nvrtc._ptx.cache_clear()
        nvrtc.compile_ptx(CODE)
        return {path: book.read(path)}

    monkeypatch.setattr(book, "execute_all", executed)
    assert book.run([path], check=True) == 1
    assert "1 of 1 are missing" in capsys.readouterr().err
    nvrtc.ask.cache_clear()
    beforehand.keep_up(
        {nvrtc.key("ptx", CODE, (), ARCH): nvrtc.ask("ptx", CODE, (), ARCH)}, False, False
    )
    assert book.run([path], check=True) == 0
