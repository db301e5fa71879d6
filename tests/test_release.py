"""What a release refuses: recordings of another version of a kernel, or of no known commit."""

import json
import shutil

import pytest

from sgemm_lab.measure import release
from sgemm_lab.measure.release import outdated
from sgemm_lab.paths import MEASUREMENTS

FILES = {  # a file with a row of step 2's kernel → what makes it anew
    "h200.json": "python -m sgemm_lab bench --missing",
    "counters.json": "python -m sgemm_lab record --missing",
    "resources.json": "python -m sgemm_lab record --missing",
    "ncu_h200.json": "python benchmarks/hardware_counters.py",
    "r1_h200.json": "python benchmarks/r1_study.py",
    "sanitizers.json": "python benchmarks/compute_sanitizer.py",
    "audits.json": "python -m sgemm_lab audit --record",
    "audits_h200.json": "on NVIDIA H200: python -m sgemm_lab audit --record --gpu",
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_kernel_is_named_with_the_command_to_run(name, tmp_path):
    text = (MEASUREMENTS / name).read_text("utf-8")
    record = json.loads(text)
    rows = record.get("rows", record.get("runs"))
    named = (
        rows.items()
        if isinstance(rows, dict)
        else ((r.get("kernel", r.get("name")), r) for r in rows)
    )
    row = next(row for key, row in named if key.startswith("02_tiled") and "source_hash" in row)
    row["source_hash"] = "0" * 16
    (tmp_path / name).write_text(json.dumps(record))
    (told,) = outdated(tmp_path)
    assert told.startswith(f"{name} was made with another version of 02_tiled. Run")
    assert told.endswith(FILES[name])


@pytest.mark.parametrize("name", ["h200.json", "counters.json", "resources.json", "ncu_h200.json"])
def test_a_step_that_a_recording_lacks_is_named_with_the_command_to_run(name, tmp_path):
    record = json.loads((MEASUREMENTS / name).read_text("utf-8"))
    part = "rows" if "rows" in record else "runs"
    rows = record[part]
    record[part] = (
        {key: row for key, row in rows.items() if not key.startswith("02_tiled")}
        if isinstance(rows, dict)
        else [row for row in rows if not row.get("kernel", row.get("name")).startswith("02_tiled")]
    )
    (tmp_path / name).write_text(json.dumps(record))
    (told,) = outdated(tmp_path)
    assert told.startswith(f"{name} has nothing of 02_tiled. Run")
    assert told.endswith(FILES[name])


@pytest.mark.parametrize("commit", ["PENDING", None, "abcdef123456+changes"])
def test_a_recording_of_no_known_commit_is_named(commit, tmp_path):
    record = json.loads((MEASUREMENTS / "h200.json").read_text("utf-8"))
    record["sessions"][0]["commit"] = commit
    (tmp_path / "h200.json").write_text(json.dumps(record))
    (told,) = outdated(tmp_path)
    assert f"names no commit that its kernels can be found in, but {commit}" in told


def test_what_others_report_needs_no_command(tmp_path):
    shutil.copy(MEASUREMENTS / "h200-r3.json", tmp_path)
    assert outdated(tmp_path) == []


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [([], 0, "Everything recorded is of these kernels."), (["ncu.json is old."], 1, "ncu.json")],
)
def test_the_command_says_so(found, status, said, monkeypatch, capsys):
    monkeypatch.setattr(release, "outdated", lambda: found)
    assert release.main([]) == status
    assert said in capsys.readouterr().out
