"""The table of agreement with hardware, as the pages show it."""

import json

import pytest

from sgemm_lab.run import agreement as module
from sgemm_lab.run.agreement import agreement, comparison


def recorded(*sizes) -> int:
    """How many launches of these sizes the record has."""
    rows = json.loads(module.COUNTED.read_text(encoding="utf-8"))["rows"]
    return sum(not sizes or (row["M"], row["N"], row["K"]) in sizes for row in rows)


@pytest.mark.parametrize("arch", ["compute_75", pytest.param("compute_90", marks=pytest.mark.slow)])
def test_every_number_of_every_small_launch_is_the_hardwares(arch):
    sizes = (129, 65, 97), (200, 136, 72)
    found = agreement(sizes, arch)
    assert found.launches == recorded(*sizes) >= 90 and found.differences == ()
    assert found.equal == found.total and set(found.total.values()) == {found.launches}


@pytest.mark.slow
def test_every_number_of_every_launch_is_the_hardwares():
    found = agreement()
    assert found.launches == recorded() and found.equal == found.total, found.differences


def test_a_number_that_is_not_the_hardwares_is_named(tmp_path, monkeypatch):
    record = json.loads(module.COUNTED.read_text())
    row = next(r for r in record["rows"] if r["M"] == 129)
    row["counters"]["global_load_sectors"] += 1
    record["rows"] = [row]
    monkeypatch.setattr(module, "COUNTED", tmp_path / "counted.json")
    module.COUNTED.write_text(json.dumps(record))
    found = agreement()
    assert found.launches == 1 and len(found.differences) == 1
    assert "global_load_sectors is" in repr(found)


def test_the_ptx_machine_finds_what_any_tool_finds_and_cries_wolf_at_no_right_kernel():
    found = comparison()
    assert found.mutants >= 60 and found.right >= 6
    assert found.found["the PTX machine"] >= found.found["any of its tools"] > 40
    assert not found.false
