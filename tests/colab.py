"""Colab's runtime made anew on this machine, and what goes on there.

An environment holds the packages of colab.txt and not the book. As on Colab, a notebook lies alone
in a folder, and its first cell brings the rest: the tree as it is here, served from this machine as
if it were GitHub. nbclient of this environment drives them, with the code that executes the book.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import site_checks

from sgemm_lab import book, repo
from sgemm_lab.paths import ROOT

ADDRESS = "https://github.com/someone/a-book"
PACKAGES = Path(__file__).with_name("colab.txt")
PYTHONS = ("3.12", "3.13")


def missing(version: str) -> bool:
    """Is there no such Python here?"""
    name = f"python{version}"
    return (
        not shutil.which(name) or subprocess.run([name, "-c", ""], capture_output=True).returncode
    )


def environment(version: str) -> Path:
    """The Python of an environment with Colab's packages, made by pip where it is missing or stale.

    Raises CalledProcessError where pip fails; it says why.
    """
    folder = ROOT / f".venv-colab-{version}"
    python, made = folder / "bin" / "python", folder / PACKAGES.name
    if not made.is_file() or made.read_bytes() != PACKAGES.read_bytes():
        for command in (
            [f"python{version}", "-m", "venv", "--clear", folder],
            [python, "-m", "pip", "install", "--quiet", "-r", PACKAGES],
            [python, "-m", "ipykernel", "install", "--sys-prefix"],  # names this very Python
            ["cp", PACKAGES, made],
        ):
            subprocess.run(command, check=True)
    return python


# -- the repository ------------------------------------------------------------------------------


def git(command: str, folder: Path, *more: str | Path) -> str:
    """What git says to `command` in `folder`, whatever this machine's settings are."""
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
           for key, value in (("NAME", "ada"), ("EMAIL", "ada@example.org"))}  # fmt: skip
    done = subprocess.run(
        ["git", *command.split(), *more], cwd=folder, env=os.environ | plain | who,
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def bare(tree: Path) -> Path:
    """A bare clone of the repository `tree`, beside it."""
    repository = tree.with_name(f"{tree.name}.git")
    git("clone --quiet --bare", tree, ".", repository)
    return repository


def published(tree: Path) -> Path:
    """What is here, committed or not, with the address: a bare repository beside `tree`."""
    listed = git("ls-files -z --cached --others --exclude-standard", ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    repo.move(ADDRESS, tree)
    git("init --quiet --initial-branch", tree, book.revision())
    git("add --all", tree)
    git("commit --quiet --message all", tree)
    return bare(tree)


def served(repository: Path) -> dict[str, str]:
    """The variables by which git fetches from `repository` what the address has."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
    }


# -- Jupyter -------------------------------------------------------------------------------------


def variables(python: Path, home: Path) -> dict[str, str]:
    """What a Jupyter of this Python's environment is told: the book's place, no GPU, and a `home`
    of its own, so that nothing depends on the settings of whoever runs it."""
    own = ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME",
           "JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES")  # fmt: skip
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_PATH": str(python.parents[1] / "share" / "jupyter"),
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or an old debugger warns of every new Python
        **{f"{name}_DIR": str(home / name.partition("_")[2].lower()) for name in own},
    }


def on_colab(python: Path, home: Path, repository: Path, kind: str) -> dict[str, str]:
    """The same for Colab's runtime of a `kind`: "GPU", or "CPU", which has neither CuPy nor NVRTC.
    Nothing of the book, whose address is that of `repository`; `google.colab` in every kernel."""
    startup = home / "ipython" / "profile_default" / "startup" / "colab.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(STARTUP)
    lacking = home / "lacking"
    lacking.mkdir()
    if kind == "CPU":
        (lacking / "cupy.py").write_text('raise ImportError("there is no CuPy here")')
    own = {"COLAB_RELEASE_TAG": "release-colab", "PYTHONPATH": str(lacking)}
    return variables(python, home) | served(repository) | own


STARTUP = """\
import sys
import types

sys.modules["google.colab"] = types.ModuleType("google.colab")
"""


def copies(stems: Iterable[str], folder: Path) -> dict[str, Path]:
    """Copies of the chapters, each alone in a folder of its own under `folder`: stem → path."""
    paths = {stem: folder / stem / f"{stem}.ipynb" for stem in stems}
    for stem, path in paths.items():
        path.parent.mkdir()
        shutil.copy(book.find(stem), path)
    return paths


def execute(paths: Iterable[Path], told: dict[str, str]) -> None:
    """Executes notebooks where they lie, by the Jupyter with the variables `told`, and writes them.

    Their first cells fetch the book from its address. Raises NotebookError where a cell fails.
    """
    address = mock.patch.object(book, "repository", return_value=ADDRESS)
    with mock.patch.dict(os.environ, told), address:
        done = book.finish(book.execute_all(list(paths), timeout=300))
    for path, nb in done.items():
        if isinstance(nb, book.NotebookError):
            raise nb
        book.write(nb, path)


@contextmanager
def lab(python: Path, folder: Path, told: dict[str, str]) -> Iterator[str]:
    """The address of a JupyterLab of this Python's environment, with the variables `told`, that
    serves `folder`; all notebooks one folder below are trusted. Raises RuntimeError with what it
    said where it does not start."""
    runtime, told = Path(told["JUPYTER_RUNTIME_DIR"]), os.environ | told
    notebooks = map(str, folder.glob("*/*.ipynb"))
    subprocess.run([python, "-m", "jupyter", "trust", *notebooks], env=told, check=True)
    options = {
        "ServerApp.root_dir": folder,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,  # any that is free
        "ServerApp.token": "",  # reached from this machine only
        "IdentityProvider.token": "",  # the same in newer servers
        "LabApp.expose_app_in_browser": True,  # as window.jupyterapp
    }
    command = [python, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with open(folder / "log", "w+") as log:
        server = subprocess.Popen(command, env=told, stdout=log, stderr=log)
        try:
            while not (url := _address(runtime)):
                if server.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"JupyterLab ended at once:\n{log.read()}")
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()
            server.wait()


def _address(runtime: Path) -> str | None:
    """That of the server, once the file that holds it is whole."""
    for path in runtime.glob("jpserver-*.json"):
        with suppress(ValueError):
            return json.loads(path.read_text())["url"]
    return None


# -- widgets -------------------------------------------------------------------------------------

# What ipywidgets 8 saves and 7 does not, or under another name.
_NAMES = {"tooltip": "description_tooltip", "description_allow_html": None, "titles": None}
_MODELS = {"Stack": "Tab", "HTMLStyle": "DescriptionStyle"}
_VERSIONS = {"@jupyter-widgets/controls": "1.5.0", "@jupyter-widgets/base": "1.2.0"}


def as_saved_there(models: dict[str, dict]) -> dict[str, dict]:
    """The widgets of explorers, as ipywidgets 8 has them in a notebook, in the words of 7."""
    text = json.dumps(models)
    for new, old in _MODELS.items():
        text = re.sub(rf'"{new}(Model|View)"', rf'"{old}\1"', text)
    found = json.loads(text)
    for model in found.values():
        version, state = _VERSIONS[model["model_module"]], model["state"]
        model["model_module_version"] = version
        state |= {key: version for key in state if key.endswith("_module_version")}
        model["state"] = {
            name: value for key, value in state.items() if (name := _NAMES.get(key, key))
        }
    for tab, selector in site_checks.turned_by(models).items():
        selected = found[selector]["state"]
        titles = [f"{selected['description']} = {label}" for label in selected["_options_labels"]]
        found[tab]["state"]["_titles"] = {str(i): title for i, title in enumerate(titles)}
    return found


def page_as_saved_there(html: str) -> str:
    """A page with its widgets in the words of ipywidgets 7."""

    def translated(found: re.Match) -> str:
        saved = json.loads(found[1])
        saved["state"] = as_saved_there(saved["state"])
        return found[0].replace(found[1], json.dumps(saved).replace("</", "<\\/"))

    return site_checks.STATE.sub(translated, html)
