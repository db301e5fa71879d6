"""The repository as others find it: one address, nothing of anybody's machine, files that agree."""

import importlib.util
import re
import shutil
import subprocess
import tomllib
from types import SimpleNamespace

import pytest
import yaml
from conftest import HTML

from sgemm_lab import book, repo
from sgemm_lab.__main__ import COMMANDS
from sgemm_lab.paths import ROOT

NEW = "https://github.com/someone/a-book"


def tracked(root=ROOT) -> list:
    """The files that git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    return [p for name in listed.stdout.decode().split("\0") if (p := root / name).is_file()]


def texts(paths) -> dict:
    """file -> its text; files that are no text are left out."""
    found = {}
    for path in paths:
        data = path.read_bytes()
        if b"\0" not in data:
            found[path] = data.decode()
    return found


TEXTS = texts(tracked())


# ------------------------------------------------------------------------------- the address


@pytest.fixture
def copy(tmp_path):
    """The files that hold the address, and a page that holds a copy of its own; in git."""
    for name in ("_config.yml", "CITATION.cff", "book/01_naive.ipynb", "book/02_tiled.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "book" / "page.md").write_text("Nothing here.\n")
    for command in ("init -q", "add ."):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


def names(paths) -> list[str]:
    return sorted(path.name for path in paths)


HOLDERS = ["01_naive.ipynb", "02_tiled.ipynb", "CITATION.cff", "_config.yml"]


def test_a_new_address_goes_wherever_it_must_stand_and_once_is_enough(copy):
    for address in (NEW, NEW + "-moved"):
        assert names(repo.move(address, copy)) == HOLDERS
        assert repo.move(address, copy) == []
        assert book.repository(copy) == address
        for path in book.notebooks(copy):
            first = book.read(path).cells[0].source
            assert f'url, revision = "{address}", "{book.revision()}"' in first
            assert book.dumps(book.canonical(book.read(path))) == path.read_bytes()
        assert yaml.safe_load((copy / "CITATION.cff").read_text())["repository-code"] == address


def test_the_branch_or_tag_that_readers_get_stands_where_it_must(copy):
    repo.move(NEW, copy)
    assert names(repo.pin("v1.2.3", copy)) == ["01_naive.ipynb", "02_tiled.ipynb", "_config.yml"]
    assert repo.pin("v1.2.3", copy) == []
    assert (book.repository(copy), book.revision(copy)) == (NEW, "v1.2.3")
    for path in book.notebooks(copy):
        assert f'url, revision = "{NEW}", "v1.2.3"' in book.read(path).cells[0].source


@pytest.mark.parametrize("name", ["", "-x", "a b", "a;b", "$(a)", "a/", "/a", "a//b", "ä"])
def test_what_is_no_branch_or_tag_is_refused_in_a_sentence(name, capsys):
    before = (ROOT / "_config.yml").read_bytes()
    assert repo.main([f"--revision={name}"]) == 1
    told = f"{name!r} is no branch or tag. It looks like main or v1.2.3.\n"
    assert capsys.readouterr().err == told
    assert (ROOT / "_config.yml").read_bytes() == before


def test_the_command_sets_both_and_says_what_readers_get(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(repo, "move", lambda url: done.append(url) or [ROOT / "_config.yml"])
    monkeypatch.setattr(repo, "pin", lambda name: done.append(name) or [ROOT / "_config.yml"])
    monkeypatch.setattr(book, "repository", lambda root=ROOT: NEW)
    monkeypatch.setattr(book, "revision", lambda root=ROOT: "v1.2.3")
    assert repo.main([NEW, "--revision", "v1.2.3"]) == 0
    assert done == [NEW, "v1.2.3"]
    assert capsys.readouterr().out == f"changed _config.yml\nReaders get v1.2.3 of {NEW}.\n"


def test_the_old_address_is_found_where_it_was_left(copy):
    repo.move(NEW, copy)
    (copy / "book" / "page.md").write_text(f"Hello.\nSee {NEW}/issues.\n")
    repo.move(NEW.replace("a-book", "other"), copy)
    assert repo.left(NEW, copy) == ["book/page.md:2"]


@pytest.mark.parametrize("url", [
    "", "sgemm-lab", "http://github.com/a/b", "https://gitlab.com/a/b", "git@github.com:a/b.git",
    "https://github.com/a", "https://github.com/a/b/tree/main", "https://github.com/-a/b",
    "https://github.com/OWNER/sgemm-lab", "https://github.com/a/b?x",
])  # fmt: skip
def test_what_is_no_address_on_github_is_refused_in_a_sentence(url, capsys):
    before = (ROOT / "_config.yml").read_bytes()
    assert repo.main([url]) == 1
    assert capsys.readouterr().err == (
        f"{url!r} is no address of a repository on GitHub, which Colab opens notebooks from. It "
        "looks like https://github.com/NAME/REPOSITORY.\n"
    )
    assert (ROOT / "_config.yml").read_bytes() == before


@pytest.mark.parametrize("end", ["", "/", ".git", ".git/"])
def test_a_slash_or_git_at_the_end_is_left_out(end):
    assert repo.valid(NEW + end) == NEW


def test_without_a_url_the_address_is_told_or_how_to_set_it(capsys, monkeypatch):
    for address, told in ((NEW, f"{NEW}, {book.revision()}\n"), (None, f"{repo.UNSET}\n")):
        monkeypatch.setattr(book, "repository", lambda root=ROOT, found=address: found)
        assert repo.main([]) == 0
        assert capsys.readouterr().out == told


def strays(found: dict, name: str) -> list[str]:
    """Addresses of this repository in files that `repo` does not change."""
    address = re.compile(rf"github\.com[/:](?:[\w.-]+/{re.escape(name)}\b|OWNER/)")
    return [
        f"{path.name} holds {match[0]}. The address stands in _config.yml: write <repository> in a "
        "page, ask sgemm_lab.book.repository() in Python, link relatively elsewhere."
        for path, text in found.items()
        if path.name not in ("_config.yml", "CITATION.cff", "test_repository.py")
        for match in address.finditer(without_first_cell(path, text))
    ]


def without_first_cell(path, text: str) -> str:
    return text if path.suffix != ".ipynb" else "".join(c.source for c in book.read(path).cells[1:])


def test_no_other_file_holds_the_address():
    configured = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    assert strays(TEXTS, configured.rsplit("/", 1)[-1]) == []


@pytest.mark.parametrize(
    "text", ["https://github.com/ada/a-book/issues", "git@github.com:b/a-book"]
)
def test_a_stray_copy_of_the_address_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    assert "page.md holds github.com" in strays({page: f"See {text}"}, "a-book")[0]
    assert strays({page: "See https://github.com/ada/another"}, "a-book") == []


# -- the pages


@pytest.fixture(params=[NEW, None], ids=["address", "none"])
def configured(request, monkeypatch):
    """The extension that puts the address into pages, and what Sphinx gives it."""
    monkeypatch.setattr(book, "repository", lambda root=ROOT: request.param)
    where = ROOT / "book" / "_ext" / "beyond_notebooks.py"
    spec = importlib.util.spec_from_file_location("beyond_notebooks", where)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    options = {
        "repository_url": request.param or "https://github.com/OWNER/sgemm-lab",
        "repository_branch": "main",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {"colab_url": "https://colab.example"},
    }
    config = SimpleNamespace(html_theme_options=options)
    app = SimpleNamespace(config=config, env=SimpleNamespace(doc2path=lambda name: f"{name}.md"))
    extension.buttons(app, config)
    return SimpleNamespace(extension=extension, app=app, options=options, address=request.param)


def test_the_title_page_names_the_address_or_says_that_there_is_none(configured):
    page = [(ROOT / "book" / "intro.md").read_text()]
    configured.extension.addresses(configured.app, "book/intro", page)
    assert "<repository>" not in page[0] and "<colab>" not in page[0]
    if configured.address:
        assert f"git clone {NEW}\n" in page[0]
        assert ":link: https://colab.example/github/someone/a-book/blob/main/book/00" in page[0]
    else:
        assert page[0].count(configured.extension.NOT_YET) == 2
        assert "OWNER" not in page[0] and ":link: http" not in page[0]


def test_there_are_buttons_only_where_they_lead_somewhere(configured):
    shown = [configured.options[key] for key in ("use_repository_button", "launch_buttons")]
    assert [bool(each) for each in shown] == [bool(configured.address)] * 2


@pytest.mark.usefixtures("site")
def test_a_built_page_links_to_the_repository_it_has_and_to_no_other():
    address = book.repository()
    link = re.compile(r'href="(https://(?:github\.com|colab\.research\.google\.com/github)/[^"]*)"')
    ours = address and address.removeprefix("https://")
    for page in (HTML / "book").glob("*.html"):
        for found in link.findall(page.read_text("utf-8")):
            at_colab = found.replace("colab.research.google.com/github", "github.com")
            assert ours and ours in at_colab, f"{page.name} leads to {found}"


# ------------------------------------------------------------------------------- nothing private

_WORD = r"[\w.+-]+"
PRIVATE = {
    "an e-mail address": re.compile(rf"\b{_WORD}@(?:[\w-]+\.)+[a-z]{{2,}}\b", re.IGNORECASE),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    "a token of GitHub": re.compile(r"\b(?:gh[opsur]_\w{30,}|github_pat_\w{30,})"),
    "a token of a package index": re.compile(r"\b(?:pypi-AgE\w{20,}|npm_\w{30,})"),
    "a key of a cloud": re.compile(r"\b(?:AKIA[A-Z\d]{16}|AIza[\w-]{30,}|hf_\w{30,}|sk-\w{30,})"),
    "a password in an address": re.compile(r"\w+://[^\s/:@'\"{}]+:[^\s/@'\"{}]+@"),
    "a path of one machine": book.MACHINE["a path of this machine"],
}
PUBLIC = re.compile(r"git@github\.com|@example\.(?:com|org)\b")


def private(text: str) -> list[str]:
    """What in `text` is nobody else's business, in words."""
    return [
        f"{what}: {match[0]!r}"
        for what, pattern in PRIVATE.items()
        for match in pattern.finditer(text)
        if not PUBLIC.search(match[0])
    ]


def test_nothing_private_is_in_the_tree():
    found = [
        f"{path.relative_to(ROOT)}: {what}. Take it out (a token or key must be revoked, too: it "
        "stays in the history); for a path, write one that is relative to the repository."
        for path, text in TEXTS.items()
        for what in private(text)
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("parts, told", [
    (("ada", "@lovelace.uk"), "an e-mail address"),
    (("-----BEGIN RSA ", "PRIVATE KEY-----"), "a private key"),
    (("gh", "p_" + 36 * "a"), "a token of GitHub"),
    (("github", "_pat_" + 40 * "a"), "a token of GitHub"),
    (("pypi-", "AgE" + 30 * "a"), "a token of a package index"),
    (("AK", "IA" + 16 * "A"), "a key of a cloud"),
    (("https://ada:secret", "@host.example"), "a password in an address"),
    (("/ho", "me/ada/book"), "a path of one machine"),
    (("/wo", "rk/book"), "a path of one machine"),
    (("C:", r"\Users\ada"), "a path of one machine"),
])  # fmt: skip
def test_what_is_private_is_found(parts, told):
    found = private(f'{{"metadata": {{"by": "{"".join(parts)}"}}}}')
    assert any(what.startswith(f"{told}: ") for what in found)


def test_what_is_public_is_not_private():
    assert (
        private("git@github.com:a/b.git, jupyter-book@1.0.4, /usr/bin/env, ada@example.org") == []
    )


# ------------------------------------------------------------------------------- files that agree


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_in_the_package_the_citation_and_the_changelog():
    version = project()["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


def test_a_release_that_readers_get_is_of_this_version():
    assert book.revision() in ("main", f"v{project()['version']}")


def test_make_alone_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    listed = subprocess.run(
        ["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[1] for line in listed.splitlines()} == targets


COMMANDS_IN = ("README.md", "CONTRIBUTING.md", "Makefile", ".pre-commit-config.yaml")


@pytest.mark.parametrize("name", COMMANDS_IN)
def test_every_command_that_a_page_names_is_there(name):
    text = (ROOT / name).read_text()
    assert set(re.findall(r"-m sgemm_lab (\w+)", text)) <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"(?:`|    )make ([a-z-]+)", text)
    assert [target for target in named if f"\n{target}:" not in makefile] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_file_that_a_page_at_the_top_names_is_there(name):
    text = (ROOT / name).read_text()
    roots = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.name != "_build")
    paths = re.findall(rf"(?<![\w/.-])((?:{roots})(?:/[\w.-]*\w/?)*)", text)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    wanted = [path for path in paths + links if "_name" not in path]  # NN_name.cu: an example
    assert wanted
    assert [path for path in wanted if not (ROOT / path).exists()] == []
