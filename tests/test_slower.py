from itertools import pairwise

import pytest
from test_records import measured_run, record, session

from sgemm_lab.ladder import ladder
from sgemm_lab.measure import gains, records
from sgemm_lab.measure.gains import FASTER, LEVEL, REPORTED, SLOWER, Gain
from sgemm_lab.measure.suspects import QUANTITIES, suspects
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run.cubin import machine_code
from sgemm_lab.run.profile import executed_accesses
from sgemm_lab.show import charts


def timed(variant, N=4096, ratio=0.5, wide=0.001, **changes):
    """A run of `variant` at `ratio` of cuBLAS, made up; its interval is 2·`wide` wide."""
    own = {"macros": dict(variant.macros), "kernel": variant.key}
    source = {"source_hash": variant.source_hash} if variant.step.function else {}
    run = measured_run(2, N, 1 / ratio) | own | {"step": variant.step.number}
    run.pop("source_hash")
    interval = {"low": ratio - wide, "median": ratio, "high": ratio + wide}
    return run | source | {"ratio": interval} | changes


def save(directory, *runs):
    records.write(directory / "h200.json", record(*runs))
    return directory


def default(number):
    return ladder[number]()


def ladder_of(directory, shares, N=4096, twins=(0.2, 0.2)):
    """Steps 2 and 3 as twins, then later steps with these shares of cuBLAS."""
    runs = [timed(default(n), N, share) for n, share in zip((2, 3), twins, strict=True)]
    return save(directory, *runs, *(timed(default(n), N, share) for n, share in shares.items()))


# -- a gain and what can be told


def test_a_gain_is_the_quotient_of_the_ratios_and_its_interval_the_worst_and_best_of_theirs(
    tmp_path,
):
    look = save(tmp_path, timed(default(7), ratio=0.5, wide=0.01), timed(default(8), ratio=0.6))
    gain = gains.between(ladder[8], ladder[7], 4096, where=look)
    assert gain.ratio == pytest.approx(0.6 / 0.5)
    assert (gain.low, gain.high) == pytest.approx((0.599 / 0.51, 0.601 / 0.49))


CLOCK = {"min": 1980, "median": 1980, "max": 1980}


def two_of(directory, *sessions):
    """Step 8, 8 ms in the first session, over step 7, 10 ms in the last; ratios say otherwise."""
    times = (7, {"min": 9, "median": 10, "max": 11}), (8, {"min": 7, "median": 8, "max": 8.5})
    runs = [timed(default(n), ratio=0.5, ms=ms, session=k * (len(sessions) - 1))
            for k, (n, ms) in enumerate(times)]  # fmt: skip
    full = [session(second) | clock for second, clock in enumerate(sessions)]
    records.write(directory / "h200.json", record(*runs, sessions=full))
    return gains.between(ladder[8], ladder[7], 4096, where=directory)


def test_where_the_clock_stood_still_a_gain_is_the_quotient_of_the_times(tmp_path):
    gain = two_of(tmp_path, {"clock_mhz": CLOCK})
    assert (gain.low, gain.ratio, gain.high) == pytest.approx((9 / 8.5, 10 / 8, 11 / 7))


@pytest.mark.parametrize(
    "sessions",
    [[{}], [{"clock_mhz": {"median": 1980}}], [{"clock_mhz": CLOCK | {"min": 1965}}],
     2 * [{"clock_mhz": CLOCK}]],
    ids=["not sampled", "ends not known", "moved", "two sessions"],
)  # fmt: skip
def test_elsewhere_a_gain_is_the_quotient_of_the_ratios(tmp_path, sessions):
    assert two_of(tmp_path, *sessions).ratio == 1


def test_on_the_record_all_gains_are_of_times():
    found = gains.pairs()
    assert len(found) > 1000
    assert all(gain.ratio == pytest.approx(gain.before.ms / gain.after.ms) for gain in found)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.59, SLOWER), (0.598, LEVEL), (0.6, LEVEL), (0.602, LEVEL), (0.61, FASTER)],
)
def test_a_kernel_is_slower_only_where_the_whole_interval_is(tmp_path, share, verdict):
    look = ladder_of(tmp_path, {7: 0.6, 8: share}, twins=(0.2, 0.2))
    gain = gains.between(ladder[8], ladder[7], 4096, where=look)
    assert gain.verdict == verdict


def test_a_kernel_whose_interval_reaches_the_other_is_level(tmp_path):
    fast, vague = timed(default(7), ratio=0.6), timed(default(8), ratio=0.58, wide=0.03)
    twins = [timed(default(n), ratio=0.2) for n in (2, 3)]
    look = save(tmp_path, *twins, fast, vague)
    gain = gains.between(ladder[8], ladder[7], 4096, where=look)
    assert gain.ratio < 1 - gain.floor and gain.verdict == LEVEL


def test_what_sets_two_runs_of_one_program_apart_sets_no_kernels_apart(tmp_path):
    apart = ladder_of(tmp_path, {7: 0.6, 8: 0.57}, twins=(0.2, 0.188))
    gain = gains.between(ladder[8], ladder[7], 4096, where=apart)
    assert gain.floor == pytest.approx(1 - 0.187 / 0.201)
    assert gain.high < 1 and gain.verdict == LEVEL


def test_cublas_beside_itself_counts_as_one_program_too(tmp_path):
    itself = timed(default(0), ratio=1.03, wide=0.001)
    look = save(tmp_path, itself, timed(default(7), ratio=0.6), timed(default(8), ratio=0.59))
    assert gains.floor("h200", (4096,) * 3, look) == pytest.approx(0.031)
    assert gains.between(ladder[8], ladder[7], 4096, where=look).verdict == LEVEL


def test_of_times_the_floor_is_how_far_medians_are_apart(tmp_path):
    twins = [timed(default(n), ms={"min": ms - 1, "median": ms, "max": ms + 1}, ratio=0.5)
             for n, ms in ((2, 100), (3, 102))]  # fmt: skip
    full = record(*twins, sessions=[session(1) | {"clock_mhz": CLOCK}])
    records.write(tmp_path / "h200.json", full)
    assert gains.floor("h200", (4096,) * 3, tmp_path) == pytest.approx(1 - 100 / 102)


def test_where_nothing_was_timed_twice_the_floor_is_that_of_reports(tmp_path):
    look = save(tmp_path, timed(default(7)))
    assert gains.floor("h200", (4096,) * 3, look) == REPORTED


def test_the_twins_are_one_program():
    first, second = gains._TWINS
    for variant in ladder[first].variants():
        other = ladder[second](**variant.macros)
        assert machine_code(variant, "sm_90") == machine_code(other, "sm_90")


def test_on_the_record_no_program_is_called_slower_or_faster_than_itself():
    pairs = [gain for gain in gains.same_settings() if gain.after.step == 3]
    wrong = [str(gain) for gain in pairs if gain.verdict != LEVEL]
    assert len(pairs) >= 90 and not wrong


def test_two_starts_of_the_machine_give_nearly_always_the_same_verdict_and_never_the_opposite():
    one, two = (
        {(g.before.kernel, g.after.kernel, g.size): g.verdict for g in gains.pairs(where=where)}
        for where in (MEASUREMENTS, gains.AGAIN)
    )
    both = [(one[key], two[key]) for key in one.keys() & two.keys()]
    assert len(both) > 1000 and sum(a == b for a, b in both) > 0.95 * len(both)
    assert not [two for two in both if set(two) == {SLOWER, FASTER}]


def test_what_was_not_measured_is_named():
    with pytest.raises(LookupError, match=r"07_thread_tile_4x4 .* at 1×2×3 has no run on h200"):
        gains.between(ladder[8], ladder[7], (1, 2, 3))


# -- which pairs there are


def test_steps_are_paired_with_the_one_before_that_was_measured_there(tmp_path):
    runs = [timed(default(n), N) for N in (256, 512) for n in (0, 5, 7, 8) if (n, N) != (7, 512)]
    found = gains.steps(where=save(tmp_path, *runs))
    assert [(g.before.step, g.after.step, g.after.N) for g in found] == [
        (5, 7, 256), (7, 8, 256), (5, 8, 512),
    ]  # fmt: skip


def test_a_setting_is_paired_with_the_next_larger_value_of_each_macro(tmp_path):
    variants = [ladder[2](TILE=t, ACCUMULATORS=a) for t in (8, 16, 32) for a in (1, 2)]
    found = gains.settings(where=save(tmp_path, *map(timed, variants)))
    changes = [(macro, g.before.macros[macro], g.after.macros[macro]) for macro, g in found]
    assert sorted(changes) == sorted(
        2 * [("TILE", 8, 16), ("TILE", 16, 32)] + 3 * [("ACCUMULATORS", 1, 2)]
    )


def test_the_same_setting_means_the_same_in_both_steps(tmp_path):
    macros = {"TILE": 64, "BK": 32, "TM": 8}  # a column of 8 in step 6, a square of 8×8 in 7 and 8
    runs = [timed(ladder[n](**macros)) for n in (5, 6, 7, 8)]
    found = gains.same_settings(where=save(tmp_path, *runs))
    assert [(g.before.step, g.after.step) for g in found] == [(5, 6), (7, 8)]


def test_reported_ladders_are_compared_kernel_by_kernel_without_cublas_cpu_and_profiler():
    found = {(g.after.label, g.after.kernel, g.before.kernel) for g in gains.reported()}
    assert ("ladder b", "ladder b, step 5, double-buffered", "ladder b, step 4") in found
    assert ("R1", "R1 tiled", "R1 naive") in found
    names = {name for _, *two in found for name in two}
    assert not [n for n in names if "CPU" in n or "Nsight" in n or "cuBLAS" in n]


def test_r3s_twins_are_as_far_apart_as_a_report_may_be():
    twins = [g for g in gains.reported() if (g.after.gpu, g.after.step) == ("rtx2080s", 3)]
    assert len(twins) == 8 and all(abs(g.ratio - 1) <= REPORTED for g in twins)
    assert max(abs(g.ratio - 1) for g in twins) > 0.9 * REPORTED


# -- suspects


def pair(after, before, N=4096):
    runs = [record(timed(each, N)) for each in (before, after)]
    return Gain(*(records.runs_of(each)[0] for each in runs), 0)


@pytest.mark.parametrize(
    ("after", "before", "N", "name", "change"),
    [
        (ladder[2](LAYOUT=1), ladder[2](), 4096, "wavefronts a multiply-add", "1.56 → 9.53"),
        (ladder[1](COALESCED=0), ladder[1](), 4096, "global sectors a multiply-add", "5 → 33"),
        (ladder[6](), ladder[5](), 4095, "global sectors a multiply-add", "0.0909 → 0.299"),
        (ladder[5](), ladder[6](), 4096, "global loads a multiply-add", "0.00781 → 0.0312"),
        (ladder[11](), ladder[10](), 4096, "PTX instructions a multiply-add", "1.19 → 1.21"),
        (ladder[8](), ladder[7](), 1024, "SMs busy", "97% → 48%"),
        (ladder[8](), ladder[7](), 1024, "warps on an SM", "16 → 8"),
        (ladder[8](), ladder[7](), 1024, "blocks on an SM", "2 → 1"),
    ],
)
def test_what_got_worse_is_a_suspect(after, before, N, name, change):
    assert suspects(pair(after, before, N))[name] == change
    assert name not in suspects(pair(before, after, N)), "what got better is none"


def test_a_kernel_that_spills_more_is_suspect():
    gain = pair(ladder[10](BK=16), ladder[9](BK=16))
    used = [records.resources(ladder[n](BK=16), "sm_90") for n in (9, 10)]
    spilled = [each.spill_stores + each.spill_loads for each in used]
    assert spilled[0] < spilled[1]
    assert suspects(gain)["bytes spilled"] == "{} → {}".format(*spilled)


def test_fewer_blocks_on_an_sm_are_suspect_only_if_one_is_left():
    gain = pair(ladder[2](TILE=16), ladder[2](TILE=8))
    assert "blocks on an SM" not in suspects(gain)


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_a_wide_load_of_the_transposed_tile_takes_as_many_wavefronts_as_its_rows_have_words(tile):
    (found,) = executed_accesses(ladder[2](TILE=tile, LAYOUT=1), 128, 128, 128, [(0, 0)])
    loads = [each for each in found if (each.kind, each.array) == ("load", "Bs")]
    assert {(each.size, each.together, each.wavefronts) for each in loads} == {(16, 8, tile)}


def test_one_program_has_no_suspects_and_neither_have_other_peoples_kernels():
    assert suspects(pair(default(3), default(2))) == {}
    assert suspects(next(g for g in gains.reported() if g.ratio < 1)) == {}


# -- what the pages show


def rows(bundle):
    table = bundle.text.split("\n\n")[0].splitlines()
    return {line.split("  ")[0]: line for line in table}


def test_steps_that_lose_are_in_brackets_and_those_that_cannot_be_told_apart_are_marked(tmp_path):
    table = rows(charts.slower_steps(directory=ladder_of(tmp_path, {4: 0.2, 5: 0.1, 6: 0.3})))
    assert "~1.00" in table["4 No bank conflicts"]
    assert "[0.50]" in table["5 A column of outputs a thread"]
    assert "3.00" in table["6 128-bit loads and stores"]
    assert table["one program twice differs by"].endswith("1.01 %")


def test_a_setting_that_loses_stands_with_the_worst_pair_and_its_suspects(tmp_path):
    tiles = [(8, 0.1), (16, 0.2), (32, 0.05)]
    runs = [timed(ladder[2](TILE=tile, LAYOUT=1), 256, share) for tile, share in tiles]
    runs += [timed(ladder[2](TILE=tile, LAYOUT=1), 512, 0.1) for tile in (16, 32)]  # level
    for name in ("counters.json", "resources.json"):
        (tmp_path / name).symlink_to(MEASUREMENTS / name)
    table = rows(charts.slower_settings(directory=save(tmp_path, *runs)))
    assert list(table) == ["more of a macro", "2: TILE 16 → 32"], "8 → 16 gained"
    assert "0.25" in table["2: TILE 16 → 32"] and "LAYOUT=1 N=256" in table["2: TILE 16 → 32"]
    assert "wavefronts a multiply-add 5.06 → 9.53" in table["2: TILE 16 → 32"]


def test_reports_that_lose_are_counted():
    table = rows(charts.slower_reports())
    row = table["R3 step 2: Shared-memory tiles, 2080S"].split()
    assert row[-5:-2] == ["8", "0", "0"], "slower at all eight sizes"
    assert "R3 step 7: 4×4 thread tile, 2080S" not in table


def test_every_suspect_is_seen_somewhere_and_its_counts_add_up():
    pairs = len(gains.pairs())
    _, *table = rows(charts.suspicion()).items()
    assert [name for name, _ in table] == [*QUANTITIES, "nothing of these"]
    for name, line in table:
        total, *parts = map(int, line.removeprefix(name).split())
        assert total == sum(parts) <= pairs, name


def test_a_pair_is_drawn_over_the_sizes_with_its_intervals(tmp_path):
    runs = [timed(default(n), N, s) for N in (512, 256) for n, s in ((7, 0.6), (8, 0.3))]
    bundle = charts.over(ladder[8], ladder[7], directory=save(tmp_path, *runs))
    assert bundle.text.startswith("Step 8 over step 7, times as fast, H200 SXM: N = 256: 0.500, sl")
    assert bundle.html.count('aria-label="Step 8 over step 7, times as fast') == 1 and bundle.png
    with pytest.raises(ValueError, match="no size of 09_warp_tile"):
        charts.over(ladder[9], ladder[7], directory=tmp_path)


def test_one_program_over_itself_is_shown_at_every_square_size():
    text = charts.twins().text
    squares = [r.N for r in records.runs("h200", 0, kind="measured") if r.M == r.N == r.K]
    assert len(squares) >= 8
    for N in squares:
        assert f"cuBLAS, {N}: " in text and f"3 over 2, {N}: " in text


def test_changing_a_time_in_the_file_changes_every_table(tmp_path):
    shares = {4: 0.2, 5: 0.1, 6: 0.3}
    tables = []
    for share in (0.1, 0.12):
        look = ladder_of(tmp_path, shares | {5: share})
        tables.append([
            str(charts.slower_steps(directory=look)),
            str(charts.over(ladder[5], ladder[4], directory=look)),
            str(charts.wobble(directory=look)),
        ])  # fmt: skip
    assert all(a != b for two in pairwise(tables) for a, b in zip(*two, strict=True))


def test_the_sources_of_runs_are_those_in_the_directory(tmp_path):
    old = timed(default(5), source_hash="0" * 16)
    save(tmp_path, timed(default(2)), old)
    text = str(charts.origins(directory=tmp_path))
    (line,) = [line for line in text.splitlines() if line.startswith("H200")]
    assert "this book  2026-01-01  driver 1, CUDA 2, cuBLAS 3" in line
    assert line.split()[-4:] == ["2", "1", "not", "recorded"]
    assert {run.label for run in records.runs(kind="reported")} <= set(
        str(charts.origins()).replace("  ", "\n").split("\n")
    ) | {"ladder a", "ladder b"}


def test_two_records_are_compared_median_by_median(tmp_path):
    files = [tmp_path / "h200.json", tmp_path / "repeat_h200.json"]
    for path, ratio in zip(files, (0.5, 0.55), strict=True):
        records.write(path, record(timed(default(9), ratio=ratio), timed(default(7), 256)))
    lines = str(charts.two_starts(*files)).splitlines()
    assert [" ".join(line.split()) for line in lines[1:3]] == [
        "256 1 0.00 % 0.0 %",
        "4096 1 9.09 % 9.1 %",
    ]


def test_the_spread_of_a_kernel_is_from_its_least_to_its_greatest_time(tmp_path):
    table = rows(charts.wobble(directory=save(tmp_path, timed(default(9), ratio=0.8))))
    assert "20.0%" in table["9 A tile for each warp"] and "0.7990–0.8010" in str(table)
    with pytest.raises(ValueError, match="nothing is recorded on l4"):
        charts.wobble(gpu="l4", directory=tmp_path)
