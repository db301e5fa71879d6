"""The package as a library: the README's examples, here and installed, outside of any clone."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from sgemm_lab import paths
from sgemm_lab.paths import ROOT

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<shown>.*?)^```$", re.M | re.S)
EXAMPLES = [
    (m["code"], m["shown"]) for m in BLOCK.finditer((ROOT / "README.md").read_text("utf-8"))
]
PARTS = ("sgemm_lab", "kernels", "book/measurements")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


def test_the_readme_has_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("number", range(3))
def test_an_example_shows_what_it_prints(number, capsys):
    code, shown = EXAMPLES[number]
    exec(compile(code, f"README.md, example {number + 1}", "exec"), {})
    assert capsys.readouterr().out == shown


def test_every_package_and_every_folder_of_data_is_installed():
    import tomllib

    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "sgemm_lab").rglob("*.py")}
    ours = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(told["packages"]) == ours | set(told["package-dir"])
    assert {name: ROOT / path for name, path in told["package-dir"].items()} == {
        "sgemm_lab.kernels": paths.KERNELS, "sgemm_lab.measurements": paths.MEASUREMENTS
    }  # fmt: skip
    assert not paths.INSTALLED


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel, the source archive, and the wheel installed in `lib`."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    junk = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=junk)
    for name in FILES:
        shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    shutil.copy(__file__, source / "tests")
    backend = "from setuptools.build_meta import *; import sys; build_sdist(sys.argv[1])"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, "-c", backend, made], cwd=source, check=True,
                   capture_output=True)  # fmt: skip
    subprocess.run([*pip, "wheel", *alone, "--wheel-dir", made, source], check=True)
    (wheel,) = made.glob("*.whl")
    subprocess.run([*pip, "install", *alone, "--target", made / "lib", wheel], check=True)
    return made


WANTED = {
    "sgemm_lab/compiled.json.xz",
    *(f"sgemm_lab/kernels/{path.name}" for path in paths.KERNELS.glob("*.cu")),
    *(f"sgemm_lab/measurements/{path.name}" for path in paths.MEASUREMENTS.glob("*.json")),
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "sgemm_lab").rglob("*.py")),
}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == WANTED
    assert wheel.stat().st_size < 3_000_000


@pytest.mark.slow
def test_the_source_archive_holds_what_the_wheel_is_made_of_and_no_tests(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "kernels/01_naive.cu", "book/measurements/h200.json"} <= names
    assert not [name for name in names if name.startswith("tests")]


ALONE = """
import sys
sys.path.insert(0, {lib!r})
import sgemm_lab
from sgemm_lab import ladder, records
assert sgemm_lab.__file__.startswith({lib!r}), sgemm_lab.__file__
assert len(list(ladder)) == {steps} and records.runs(gpu="h200")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_an_example_does_the_same_installed(number, built, tmp_path):
    from sgemm_lab import ladder

    code, shown = EXAMPLES[number]
    alone = ALONE.format(lib=str(built / "lib"), steps=len(list(ladder)))
    done = subprocess.run([sys.executable, "-c", alone + code], cwd=tmp_path, text=True,
                          capture_output=True)  # fmt: skip
    assert (done.stdout, done.stderr) == (shown, "")


@pytest.mark.slow
def test_a_command_that_needs_the_clone_says_so(built, tmp_path):
    command = f"import sys; sys.path.insert(0, {str(built / 'lib')!r})\n"
    command += "from sgemm_lab.__main__ import main; sys.exit(main(['run']))"
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 2 and "works in a clone of the book" in done.stderr
