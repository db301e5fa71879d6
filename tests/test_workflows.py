"""What runs on GitHub, checked here: safe, valid, and in step with the rest of the repository."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from check_jsonschema.cli import main as check_jsonschema
from click.testing import CliRunner

from sgemm_lab.__main__ import COMMANDS
from sgemm_lab.paths import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {  # of check-jsonschema -> the files that it is for
    "vendor.github-workflows": "workflows/*.yml",
    "custom.github-workflows-require-timeout": "workflows/*.yml",
    "vendor.github-actions": "actions/*/action.yml",
    "vendor.dependabot": "dependabot.yml",
    "vendor.github-issue-config": "ISSUE_TEMPLATE/config.yml",
    "vendor.github-issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.citation-file-format": "../CITATION.cff",
}
USES = re.compile(r"^\s*(?:- )?uses: (?P<action>\S+)(?P<comment>.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40}")
VERSION = re.compile(r" # v\d+\.\d+\.\d+")


def unsafe(github: Path) -> list[str]:
    """What zizmor finds in a folder like .github: "ci.yml:27: unpinned action reference: …"."""
    program = Path(sys.executable).with_name("zizmor")
    options = ("--offline", "--quiet", "--format", "github")
    found = subprocess.run(
        [program, *options, github], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "fatal" not in found.stderr, found.stderr
    return [line.rpartition("::")[2] for line in found.stdout.splitlines()]


def unpinned(text: str) -> list[str]:
    """Actions of others that are not pinned by a whole commit with the version beside it."""
    return [
        f"{found['action']}: pin it by the whole hash of a commit and say the version after it: "
        "OWNER/ACTION@40 hex digits # v1.2.3. A tag can be moved to other code"
        for found in USES.finditer(text)
        if not found["action"].startswith("./")
        and not (PINNED.fullmatch(found["action"]) and VERSION.fullmatch(found["comment"]))
    ]


def jobs() -> list:
    return [
        pytest.param(job, id=f"{path.stem}-{name}")
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    ]


def test_zizmor_finds_nothing_unsafe():
    assert unsafe(GITHUB) == []


@pytest.mark.parametrize("schema, files", SCHEMAS.items())
def test_a_file_is_what_its_schema_says(schema, files):
    paths = sorted(GITHUB.glob(files)) if ".." not in files else [ROOT / files[3:]]
    assert paths
    found = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *map(str, paths)])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.stem)
def test_every_action_is_pinned_by_commit_with_its_version(path):
    assert unpinned(path.read_text()) == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_nothing_until_a_job_asks_and_never_runs_twice_at_once(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]


@pytest.mark.parametrize("job", jobs())
def test_a_job_says_what_it_may_do_and_how_long(job):
    assert job["permissions"]
    assert job["timeout-minutes"] <= 60


@pytest.mark.parametrize("job", jobs())
def test_what_a_job_runs_is_there(job):
    script = "\n".join(step.get("run", "") for step in job["steps"])
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", script, re.MULTILINE):
        assert f"\n{target}:" in makefile, f"make {target} is no target of the Makefile"
    assert set(re.findall(r"-m sgemm_lab (\w+)", script)) <= set(COMMANDS)
    for step in job["steps"]:
        own = step.get("uses", "")
        assert not own.startswith("./") or (ROOT / own / "action.yml").is_file()
    for path in re.findall(r"^(\.ci/\w+)", script, re.MULTILINE):
        assert (ROOT / path).stat().st_mode & 0o100, f"{path} must be executable"


def test_ci_tests_each_python_that_the_readme_and_the_project_name():
    matrix = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    tested = matrix["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={tested[0]}"
    assert f"Python {tested[0]} or newer" in (ROOT / "README.md").read_text()
    *most, last = tested
    first_lines = (ROOT / "requirements.txt").read_text()[:300]
    assert f"on Python {', '.join(most)} and {last}" in first_lines


def test_nothing_of_a_pull_request_runs_on_somebodys_own_machine():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        if any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values()):
            assert not {"pull_request", "pull_request_target"} & set(workflow[True])  # "on"
            assert all("vars." in job["if"] for job in workflow["jobs"].values()), "off by default"


# What somebody might write, and what must be said about it.
BROKEN = {
    "a tag": ("checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2", "checkout@v6"),
    "no version": ("# v6.0.2", ""),
    "a short hash": ("de0fac2e4500dabe0009e67214ff5f5447ce83dd", "de0fac2"),
}


@pytest.mark.parametrize("old, new", BROKEN.values(), ids=BROKEN)
def test_an_action_that_is_not_pinned_is_found(old, new):
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    assert old in text
    told = unpinned(text.replace(old, new, 1))
    assert len(told) == 1
    assert "pin it by the whole hash of a commit" in told[0]


UNSAFE = {
    "a tag": ("@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2", "@v6", "unpinned"),
    "all permissions": (
        "permissions:\n      contents: read # to check out\n",
        "permissions: write-all\n",
        "overly broad permissions",
    ),
    "a title in a script": (
        "run: .ci/run",
        "run: echo ${{ github.event.pull_request.title }}",
        "injection",
    ),
}


@pytest.mark.parametrize("old, new, said", UNSAFE.values(), ids=UNSAFE)
def test_what_is_unsafe_is_found_with_its_line(tmp_path, old, new, said):
    copy = shutil.copytree(GITHUB, tmp_path / ".github")
    path = copy / "workflows" / "ci.yml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    told = unsafe(copy)
    assert told and all(each.startswith("ci.yml:") for each in told)
    assert any(said in each for each in told)
