"""Sphinx extension: the pages ask no other host for anything.

MathJax and the widget manager come from node_modules (`npm ci`), copied to assets/ beside the
pages; never under _static/, whose scripts Jupyter Book adds to every page. Without node_modules
the same versions come from a CDN. Also mends three things that break pages: sphinx-thebe adds its
scripts twice, and html-manager calls MathJax 2's `Hub`.
"""

import json
import shutil
from pathlib import Path

from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
CDN = "https://cdn.jsdelivr.net/npm"

# npm package -> (script, what is copied beside it)
PACKAGES = {
    "mathjax": (
        "es5/tex-chtml.js",
        ("es5/output/chtml/fonts/woff-v2/*", "es5/input/tex/extensions/*"),
    ),
    "@jupyter-widgets/html-manager": ("dist/embed.js", ("dist/*.woff2",)),
}

# html-manager typesets with MathJax 2's queue; MathJax 3 gets one that does the same.
HUB = """
(() => {
  const typeset = (node) => MathJax.startup.promise.then(() => MathJax.typesetPromise([node]));
  const Hub = {Queue: ([, , node]) => typeset(node)};
  const ready = () => { MathJax.startup.defaultReady(); MathJax.Hub = Hub; };
  window.MathJax = {...window.MathJax, startup: {...(window.MathJax || {}).startup, ready}};
})();
"""


def address(package: str) -> str:
    """Where a page finds the package's script: a path under _static/, or the pinned CDN address."""
    script, _ = PACKAGES[package]
    if (ROOT / "node_modules" / package / script).is_file():
        return f"../assets/{package}/{script}"
    version = json.loads((ROOT / "package.json").read_text())["dependencies"][package]
    return f"{CDN}/{package}@{version}/{script}"


def configure(app, config):
    config.mathjax_path = address("mathjax")
    config.nb_ipywidgets_js = {address("@jupyter-widgets/html-manager"): {"defer": "defer"}}
    if "://" in config.mathjax_path:
        logging.getLogger(__name__).info("node_modules is missing: MathJax and widgets from a CDN")


def copy(app):
    if app.builder.format != "html":
        return
    for package, (script, beside) in PACKAGES.items():
        source = ROOT / "node_modules" / package
        target = Path(app.outdir) / "assets" / package
        for pattern in (script, *beside):
            for file in filter(Path.is_file, source.glob(pattern)):
                copied = target / file.relative_to(source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copied)


def page(app, pagename, templatename, context, doctree):
    """The scripts of one page: sphinx-thebe's out, MathJax's queue in."""

    def text(script) -> str:
        return f"{script} {script.attributes.get('body', '')}"

    scripts = context["script_files"]
    scripts[:] = [s for s in scripts if "thebe" not in text(s).lower()]
    if any("mathjax" in text(s) for s in scripts):
        app.add_js_file(None, body=HUB)


def setup(app):
    app.connect("config-inited", configure, priority=100)
    app.connect("builder-inited", copy)
    app.connect("html-page-context", page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
