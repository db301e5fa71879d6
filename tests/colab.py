"""Colab's runtime made anew on this machine, and what goes on there.

An environment holds the packages of colab.txt and not the book, which its kernels find as Colab's
do: by the path. nbclient of this environment drives them, with the code that executes the book.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import site_checks

from sgemm_lab import book
from sgemm_lab.paths import ROOT

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


def variables(python: Path, home: Path) -> dict[str, str]:
    """What a Jupyter of this Python's environment is told: the book's place, no GPU, and a `home`
    of its own, so that nothing depends on the settings of whoever runs it."""
    own = ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME",
           "JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES")  # fmt: skip
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "JUPYTER_PATH": str(python.parents[1] / "share" / "jupyter"),
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or an old debugger warns of every new Python
        **{f"{name}_DIR": str(home / name.partition("_")[2].lower()) for name in own},
    }


def execute(python: Path, stems: Iterable[str], folder: Path) -> dict[str, Path]:
    """Executes copies of the chapters in `folder`, by this Python: stem → the notebook, canonical.

    Raises NotebookError where a cell fails.
    """
    copies = {stem: Path(shutil.copy(book.find(stem), folder)) for stem in stems}
    with mock.patch.dict(os.environ, variables(python, folder / "home")):
        done = book.finish(book.execute_all(list(copies.values()), timeout=300))
    for path, nb in done.items():
        if isinstance(nb, book.NotebookError):
            raise nb
        book.write(nb, path)
    return copies


@contextmanager
def lab(python: Path, folder: Path) -> Iterator[str]:
    """The address of a JupyterLab of this Python's environment that serves `folder`; all that is
    there now is trusted. Raises RuntimeError with what it said where it does not start."""
    home = folder / "home"
    told = os.environ | variables(python, home)
    notebooks = map(str, folder.glob("*.ipynb"))
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
    with open(home / "log", "w+") as log:
        server = subprocess.Popen(command, env=told, stdout=log, stderr=log)
        try:
            while not (running := list((home / "runtime").glob("jpserver-*.json"))):
                if server.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"JupyterLab ended at once:\n{log.read()}")
                time.sleep(0.1)
            yield json.loads(running[0].read_text())["url"]
        finally:
            server.terminate()
            server.wait()


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
