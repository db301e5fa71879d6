"""Sphinx extension: ``{api}`` describes names of sgemm_lab by their docstrings, a line each.

``sgemm`` is a name of the package; ``charts: *`` a module with all that it hands on; ``source: show
diff`` one with these functions; ``Profile from run.profile`` a class that one gets back. Code is
between backticks in a docstring; all else is plain text. Signatures are shown without types, which
the docstrings say in words, and defaults as the source has them.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from textwrap import dedent, indent

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

MARKS = re.compile(r"[\\*\[<$]")


def signature(function) -> str:
    """ "(A, B, alpha=1.0, *, out=None)"."""
    (definition,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    arguments = definition.args
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    return f"({ast.unparse(arguments)})"


def described(kind: str, name: str, text: str, inside: str = "", fence: int = 3) -> str:
    """A description of the Python domain, in Markdown."""
    colons = ":" * fence
    return f"{colons}{{py:{kind}}} {name}\n{text}\n\n{inside}\n{colons}\n"


def documented(thing) -> str:
    """The docstring, with what means something in Markdown escaped outside of code."""
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{thing!r} has no docstring")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if n % 2 else MARKS.sub(r"\\\g<0>", part) for n, part in enumerate(parts))


def function(name: str, thing) -> str:
    return described("function", name + signature(thing), documented(thing))


def members(cls) -> Iterator[str]:
    """What an object of the class can be asked, an item each."""
    for name, value in vars(cls).items():
        call = inspect.isfunction(value)
        value = getattr(value, "fget", None) or getattr(value, "func", None) or value
        if name[0] != "_" and callable(value) and inspect.getdoc(value):
            text = documented(value)
            shown = f"{name}{signature(value).replace('(self, ', '(').replace('(self)', '()')}"
            yield f"- `.{shown if call else name}`: " + indent(text, "  ").strip()


def line(text: str, package) -> str:
    """A line of the directive in Markdown."""
    name, _, place = text.partition(" from ")
    if place:
        cls = getattr(import_module(f"{package.__name__}.{place}"), name)
        return described("class", f"{place}.{name}", documented(cls), "\n".join(members(cls)))
    name, _, inside = text.partition(":")
    thing = getattr(package, name)
    if inside:
        names = thing.__all__ if inside.strip() == "*" else inside.split()
        below = "\n".join(function(f"{name}.{each}", getattr(thing, each)) for each in names)
        return described("data", name, documented(thing), below, fence=4)
    return function(name, thing) if inspect.isroutine(thing) else described(
        "data", name, documented(thing)
    )  # fmt: skip


class Api(SphinxDirective):
    has_content = True

    def run(self):
        import sgemm_lab

        text = "\n".join(line(each, sgemm_lab) for each in self.content if each.strip())
        node = nodes.container()
        self.state.nested_parse(StringList(text.splitlines()), self.content_offset, node)
        return node.children


def setup(app):
    app.add_directive("api", Api)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
