import copy
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from test_records import measured_run, record, session

from sgemm_lab.__main__ import main
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records, validate
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show import charts

RUNS = sorted(
    path
    for path in MEASUREMENTS.glob("*.json")
    if json.loads(path.read_text("utf-8")).get("kind") in validate.KINDS
)
TOMORROW = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"


def good(*runs, **changes):
    """What a reader with an L4 may send; everything in it is made up."""
    runs = runs or (measured_run(2), measured_run(5, N=512))
    changes = {"gpu": "l4", "gpu_name": "NVIDIA L4"} | changes
    return copy.deepcopy(
        record(*runs, **{"sessions": [session(1) | {"commit": "abc1234"}]} | changes)
    )


def save(directory, content, name="l4.json"):
    path = directory / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def run(**changes):
    return good(measured_run() | changes)


def without(part, name):
    sent = good()
    {"provenance": sent["provenance"], "session": sent["sessions"][0]}[part].pop(name)
    return sent


def at(started):
    return good(sessions=[session(1) | {"commit": "abc1234", "started": started}])


def spread(low, middle, high):
    return {"min": low, "median": middle, "max": high}


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ("", "ends in the middle, in line 1. Ask for the whole file."),
        (json.dumps(good(), indent=1)[:-90], "ends in the middle, in line .* Ask for the whole"),
        ("{'schema': 1}", "is not JSON .* in line 1"),
        ("<!DOCTYPE html><html></html>", "is not JSON .* in line 1. Ask for the file as it was."),
        (json.dumps(good()) + "\n}", r"is not JSON \(Extra data\), in line 2"),
        ("[" * 100_000, "nested too deep"),
        ('{"kind": "measured", "runs": ' + "[" * 2000 + "]" * 2000 + "}", "nested too deep"),
        ("[1, 2]", "no file of runs"),
        (good(kind="guessed"), '"kind" is none of measured, reported'),
        (good(gpu="rtx9090", gpu_name="GeForce RTX 9090"),
         r"unknown GPU 'rtx9090' \(GeForce RTX 9090\).*sgemm_lab/devices.py.*boost clock"),
        (good(gpu=["l4"]), r"unknown GPU \['l4'\]"),
        (good(gpu_name="NVIDIA L40S"), '"gpu" says l4, .* but "gpu_name" says NVIDIA L40S'),
        *((without("provenance", name), f"provenance must contain .*{name}.* Measure again")
          for name in ("driver", "cuda", "cublas", "nvrtc")),
        *((without("session", name), rf"sessions\[0\] must contain .*{name}.* Measure again")
          for name in ("started", "protocol")),
        *((good(sessions=[session(1) | {"commit": commit}]), r"sessions\[0\].commit is .*no commit")
          for commit in ("PENDING", "abc123", "abc1234+changes")),
        (good(schema=2), "schema must be same as const definition: 1. Measure again"),
        (good(surprise=1), "must not contain .*surprise"),
        (at("2026-02-30T00:00:00Z"), r"sessions\[0\].started is 2026-02-30.* no date"),
        (at(TOMORROW), r"sessions\[0\].started is .* in the future. .* clock of that machine"),
        (at("1970-01-01T00:00:00Z"), r"sessions\[0\].started is .* before CUDA 12"),
        (run(ms=spread(-1, 1, 1.1)), r"runs\[0\].ms.min must be bigger than 0. Measure again"),
        (run(cublas_ms=spread(0, 1, 1.1)), r"runs\[0\].cublas_ms.min must be bigger than 0"),
        (run(ms=spread(0.9, 1.2, 1.1)), r"runs\[0\].ms: min ≤ median ≤ max does not hold"),
        (good(measured_run(), measured_run(3, repeats=0)), r"runs\[1\].repeats must be bigger"),
        (good(runs=[]), "has no runs. Ask for the file after"),
        *((run(repeats=n), rf"runs\[0\]: repeats is {n}; `bench` has 3 to 50") for n in (1, 1000)),
        (run(launches=21), r"runs\[0\]: launches is 21; `bench` has 1 to 20"),
        (run(M=0), r"runs\[0\].M must be bigger than or equal to 1"),
        (run(session=1), r"runs\[0\]: there is no session 1"),
        (good(measured_run(), measured_run(3), measured_run()),
         r"runs\[2\]: the same kernel and size as runs\[0\]. Delete one."),
        (run(step=77), r"runs\[0\]: there is no step 77."),
        (run(step=0, macros={}, kernel="00_cublas"), r"runs\[0\]: step 0 is cuBLAS, which has"),
        (run(macros={"TILE": 31, "ACCUMULATORS": 1, "LAYOUT": 0}),
         r"runs\[0\]: no variant has these macros: TILE=31 is not a choice. Choose 8, 16 or 32."),
        (run(macros={"TILE": 16}), r"runs\[0\]: ACCUMULATORS, LAYOUT of step 2 is not given"),
        (run(kernel="02_tiled TILE=8"), r'runs\[0\]: "kernel" says 02_tiled TILE=8, step and'),
        (run(ratio={"low": 0.7, "median": 0.8, "high": 0.9}),
         r"runs\[0\]: the ratio 0.7 .* between 0.4091 and 0.6111. .*measure again"),
        (run(ratio={"low": 0.52, "median": 0.5, "high": 0.51}), r"runs\[0\]: the ratio 0.52 ≤ 0.5"),
        (run(ms=spread(9e-7, 1e-6, 2e-6), ratio={"low": 4e5, "median": 5e5, "high": 6e5}),
         r"runs\[0\]: ms gives 3.728e\+04 TFLOPS, more than the 30.29 of all FP32 units of L4"),
        (run(M=4096, N=4096, K=4096, ms=spread(9, 10, 11),
             ratio={"low": 0.05, "median": 0.05, "high": 0.05}),
         r"runs\[0\]: cublas_ms gives 305.4 TFLOPS, .* tensor cores"),
        (run(clock_mhz=2055), r"runs\[0\].clock_mhz is 2055; L4 .* 2040 MHz. Is the unit MHz"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_a_sentence_with_the_place_and_the_way_out(
    tmp_path, sent, problem
):
    path = save(tmp_path, sent)
    before = path.read_bytes()
    report = validate.validate(path)
    assert len(report.problems) == 1, report
    assert re.search(problem, report.problems[0]), report
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_books_own_files_are_good(path):
    report = validate.validate(path)
    assert not report.problems and str(report).startswith(f"{path.name}: OK\n")


def test_a_number_that_is_not_finite_is_named_where_it_stands(tmp_path):
    sent = good(measured_run(), measured_run(3))
    sent["runs"][0]["ms"]["max"] = float("inf")
    sent["runs"][1]["ratio"]["high"] = float("nan")
    report = validate.validate(save(tmp_path, sent))
    assert report.problems == (
        "runs[0].ms.max is inf. Measure again.",
        "runs[1].ratio.high is nan. Measure again.",
    )


def test_every_mistake_is_named_in_one_go_and_many_alike_are_counted(tmp_path):
    bad = [measured_run(step, repeats=0) for step in range(1, 9)]
    sent = good(*bad, measured_run(9, M=-1), gpu="rtx9090")
    del sent["provenance"]["driver"]
    told = "\n".join(validate.validate(save(tmp_path, sent)).problems)
    assert "unknown GPU 'rtx9090'" in told and "provenance must contain" in told
    assert told.count(".repeats must be") == validate.MOST_ALIKE
    assert "… and 6 more like the last" in told


@pytest.mark.parametrize(
    "name", ["l4 (1).json", "h200.json", "L4.JSON", "l4-me.json", "again_l4.json"]
)
def test_a_measured_file_is_called_after_its_gpu(tmp_path, name):
    (problem,) = validate.validate(save(tmp_path, good(), name)).problems
    assert problem == 'a measured file of "l4" is called l4.json. Rename it.'


@pytest.mark.parametrize("name", ["driver", "cuda", "nvrtc", "cublas"])
def test_another_driver_or_library_than_the_books_own_file_of_the_gpu_is_told(
    tmp_path, monkeypatch, name
):
    (tmp_path / "book").mkdir()
    monkeypatch.setattr(validate, "MEASUREMENTS", tmp_path / "book")
    booked, path = save(tmp_path / "book", good()), save(tmp_path, good())
    assert not validate.validate(path).problems
    sent = good()
    sent["provenance"][name] = "550"
    before = booked.read_bytes()
    (problem,) = validate.validate(save(tmp_path, sent)).problems
    assert re.match(
        rf"can't be merged into book/measurements: l4.json was measured with {name} \d, this run "
        "with 550. Nothing was changed; measure everything again",
        problem,
    )
    assert booked.read_bytes() == before
    assert not validate.validate(booked).problems, "it goes together with itself"


def test_a_file_cut_anywhere_ends_in_the_middle(tmp_path):
    text = json.dumps(good(run()["runs"][0] | {"throttled": [], "clock_mhz": 1e-05}))
    for end in range(0, len(text), 3):
        (problem,) = validate.validate(save(tmp_path, text[:end])).problems
        assert problem == "ends in the middle, in line 1. Ask for the whole file.", text[:end]


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_beyond_all_bounds_is_named_in_a_short_sentence(tmp_path, digits):
    text = json.dumps(run(N=7777)).replace("7777", "9" * digits)
    first, *more = validate.validate(save(tmp_path, text)).problems
    assert first == "runs[0].N is inf. Measure again."
    assert all(len(problem) < 200 for problem in more)


def test_a_time_next_to_zero_is_told_in_a_short_sentence(tmp_path):
    ms = {
        "ms": spread(1e-300, 1e-300, 1e-300),
        "ratio": dict.fromkeys(("low", "median", "high"), 1),
    }
    problems = validate.validate(save(tmp_path, run(**ms))).problems
    assert len(problems) == 2 and all(len(problem) < 250 for problem in problems)


def test_a_geforce_card_may_run_above_its_boost_clock_and_be_faster_than_its_data_sheet(tmp_path):
    size = {"M": 4096, "N": 4096, "K": 4096, "cublas_ms": spread(3.7, 3.8, 3.9)}
    size |= {"ms": spread(9, 10, 11), "ratio": {"low": 0.38, "median": 0.38, "high": 0.38}}

    def problems(**changes):
        sent = good(measured_run() | size | changes, gpu="rtx3090", gpu_name="GeForce RTX 3090")
        return validate.validate(save(tmp_path, sent, "rtx3090.json")).problems

    assert "more than the 35.58 of all FP32 units" in problems()[0]
    assert not problems(clock_mhz=1860)
    assert "boost clock of 1695 MHz" in problems(clock_mhz=2300)[0]


def reported(change):
    sent = json.loads((MEASUREMENTS / "t4-r2.json").read_text())
    change(sent)
    return sent


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda sent: sent["runs"][0].update(gflops=81e3),
         r"runs\[0\]: gflops gives 81 TFLOPS, more than the 8.141 of all"),
        (lambda sent: sent["runs"].append(sent["runs"][0]),
         r"runs\[2\]: the same kernel and size as runs\[0\]"),
        (lambda sent: sent["runs"][0].update(ms=spread(9, 8, 7)),
         r"runs\[0\]: ms: min ≤ median ≤ max does not hold"),
        (lambda sent: sent.update(gpu_name="NVIDIA L4"), '"gpu_name" says NVIDIA L4'),
        (lambda sent: sent.update(runs=[]), "has no runs"),
    ],
)  # fmt: skip
def test_what_others_report_is_looked_at_as_well(tmp_path, change, problem):
    found = validate.validate(save(tmp_path, reported(change), "t4-r2.json")).problems
    assert len(found) == 1 and re.search(problem, found[0]), found


def facts(path):
    return dict(validate.validate(path).facts)


def test_a_good_file_is_summed_up_in_a_short_table(tmp_path):
    cublas = measured_run(2, ms=0.5) | {"step": 0, "macros": {}, "kernel": "00_cublas"}
    del cublas["source_hash"]
    cublas["ratio"] = {"low": 0.99, "median": 0.998, "high": 1.01}
    old = measured_run(5, N=512, source_hash="0" * 16)
    oblong = measured_run(7, ms=1e3) | {"M": 8192, "N": 8192, "K": 4096}
    oblong["cublas_ms"] = spread(450, 500, 550)
    sent = good(cublas, measured_run(2), old, oblong)
    report = validate.validate(save(tmp_path, sent))
    assert str(report).startswith("l4.json: OK\n  GPU  ")
    assert report.facts == {
        "GPU": "NVIDIA L4 (L4)",
        "software": "driver 1, CUDA 2, cuBLAS 3, NVRTC 4",
        "measured": "2026-01-01, commit abc1234",
        "runs": "4, of 4 kernels",
        "steps": "0 2 5 7",
        "sizes": "256 512 8192×8192×4096",
        "cuBLAS to itself": "0.998 to 0.998",
        "of older kernels": "1 of 4; `python -m sgemm_lab bench 5` measures again",
        "throttled": "not recorded",
    }


def test_a_commit_that_nobody_knows_is_remarked_upon(tmp_path):
    report = validate.validate(save(tmp_path, good(sessions=[session(1)])))
    assert not report.problems and report.facts["measured"] == "2026-01-01, commit not known"


def test_a_run_of_another_version_of_a_kernel_counts_as_old_and_is_no_mistake(tmp_path):
    assert facts(save(tmp_path, run()))["of older kernels"] == "none"
    old = facts(save(tmp_path, run(source_hash="0" * 16)))["of older kernels"]
    assert old.startswith("1 of 1; `python -m sgemm_lab bench 2`")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {}, "not recorded"),
        ({"throttled": []}, {}, "no"),
        ({"throttled": ["power cap"]}, {"throttled": []}, "power cap in 1 of 2 runs"),
        ({"throttled": ["power cap"]}, {"throttled": ["heat", "power cap"]},
         "power cap in 2, heat in 1 of 2 runs"),
    ],
)  # fmt: skip
def test_it_says_whether_the_chip_lowered_its_clock_and_why(tmp_path, first, second, told):
    sent = good(measured_run(2) | first, measured_run(3) | second)
    assert facts(save(tmp_path, sent))["throttled"] == told


def test_the_command_takes_several_files_and_its_status_says_if_all_are_good(tmp_path, capsys):
    right, wrong = save(tmp_path, good()), save(tmp_path, "{", "t4.json")
    assert main(["validate", str(right)]) == 0
    assert main(["validate", str(right), str(wrong), str(tmp_path / "none.json")]) == 1
    told = capsys.readouterr().out
    assert told.count("l4.json: OK") == 2
    assert "t4.json: not good to take\n  ends in the middle" in told
    assert "none.json: not good to take\n  can't be read: No such file or directory." in told


def test_a_file_on_which_the_program_fails_takes_no_other_report_away(
    tmp_path, capsys, monkeypatch
):
    def fail(path):
        if path.name == "t4.json":
            raise TypeError("surprise")
        return validate.Report(path, facts={})

    monkeypatch.setattr(validate, "validate", fail)
    assert main(["validate", str(tmp_path / "t4.json"), str(tmp_path / "l4.json")]) == 1
    told = capsys.readouterr().out
    assert "t4.json: not good to take\n  makes this program fail: TypeError('surprise')" in told
    assert "l4.json: OK" in told


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "l4.json"
    path.write_bytes(b"\xff\xfe{}")
    assert validate.validate(path).problems == (
        "is not text in UTF-8. Ask for the file as it was.",
    )


def test_charts_show_a_new_gpu_once_its_file_is_there(tmp_path):
    save(tmp_path, good(*(measured_run(step, 2048, 10.0) for step in (1, 2))))
    assert {run.gpu for run in records.load(tmp_path)} == {"l4"}
    assert "L4 (measured)" in charts.ladder(directory=tmp_path).text
    assert "L4, measured" in charts.everything(directory=tmp_path).text
    assert "on L4" in charts.speed(ladder[2], gpu="l4", directory=tmp_path).text
