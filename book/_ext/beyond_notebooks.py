"""Sphinx extension: what the pages have that no notebook brings.

- ``{chart} NAME`` draws a chart of `sgemm_lab.charts` from the records, on a page without cells.
- The kernels lie beside the pages; where a caption names one, it is a link.
- A cell that begins with %%kernel is coloured as the CUDA C++ that it holds.
- ``<repository>`` and ``<colab>`` in a Markdown page are the addresses that _config.yml gives. As
  long as it gives none, a page says so there and has no buttons that would lead nowhere.
"""

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
CAPTION = re.compile(r"<(?:figcaption|summary)>[^<]*")
KERNEL = re.compile(r"kernels/\w+\.cu")
COLAB_CARD = re.compile(r"^:link: <colab>.*$", re.MULTILINE)
NOT_YET = "not yet: this copy of the book has no address; python -m sgemm_lab repo URL sets it"


class Chart(SphinxDirective):
    required_arguments = 1

    def run(self):
        from sgemm_lab import charts

        drawn = getattr(charts, self.arguments[0])()
        return [nodes.raw("", drawn.html, format="html")]


def buttons(app, config):
    from sgemm_lab import book

    if not book.repository():
        nowhere = {"use_repository_button": False, "use_issues_button": False, "launch_buttons": {}}
        config.html_theme_options |= nowhere | {"repository_url": ""}


def addresses(app, docname, source):
    options = app.config.html_theme_options
    if not options["repository_url"]:
        told = COLAB_CARD.sub(f"\n({NOT_YET})", source[0])
        source[0] = told.replace("<repository>", f"ADDRESS  # {NOT_YET}")
        return
    repository, branch = options["repository_url"], options["repository_branch"]
    host = options["launch_buttons"]["colab_url"]
    colab = f"{host}/github/{repository.partition('github.com/')[2]}/blob/{branch}"
    if app.env.doc2path(docname).endswith(".md"):
        source[0] = source[0].replace("<repository>", repository).replace("<colab>", colab)


def coloured(app, doctree):
    for cell in doctree.findall(nodes.literal_block):
        if cell.astext().startswith("%%kernel"):
            cell["language"] = "cuda"


def copy(app):
    if app.builder.format == "html":
        shutil.copytree(ROOT / "kernels", Path(app.outdir) / "kernels", dirs_exist_ok=True)


def page(app, pagename, templatename, context, doctree):
    def link(name) -> str:
        return f'<a href="{context["pathto"](name[0], 1)}" download>{name[0]}</a>'

    if "body" in context:
        context["body"] = CAPTION.sub(lambda found: KERNEL.sub(link, found[0]), context["body"])


def setup(app):
    app.add_directive("chart", Chart)
    app.connect("config-inited", buttons)
    app.connect("source-read", addresses)
    app.connect("builder-inited", copy)
    app.connect("doctree-read", coloured)
    app.connect("html-page-context", page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
