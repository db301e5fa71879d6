import base64
import hashlib
import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image
from test_records import measured_run, record

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.paths import ROOT
from sgemm_lab.run.profile import accesses
from sgemm_lab.show import bundle as look
from sgemm_lab.show import charts, labels, pictures, speeds, tables
from sgemm_lab.show.bundle import Bundle, figure, plot, table_html, table_text

LANES = np.arange(32)


def every_figure():
    return {
        "ladder": charts.ladder(2),
        "speed": charts.speed(ladder[1](), ladder[0](), gpu="t4", unit="GFLOPS"),
        "speed %": charts.speed(ladder[2](LAYOUT=1), ladder[1](), gpu="rtx2080s"),
        "tiling": charts.tiling(ladder[2](TILE=8), 100, 60, 50, (2, 3)),
        "warp": charts.warp_access(("rows", LANES, 0), ("columns", 0, LANES), shape=(64, 64)),
        "outputs": charts.outputs(ladder[1], ladder[2](TILE=8)),
        "schedule": charts.schedule(ladder[2](TILE=8)),
        "speed of everything": charts.everything(2),
    }


@pytest.fixture(scope="module")
def figures():
    return every_figure()


def svgs_of(bundle: Bundle) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg.*?</svg>", bundle.html, re.S)]


def svg_of(bundle: Bundle) -> ET.Element:
    (drawing,) = svgs_of(bundle)
    return drawing


def test_every_figure_is_well_formed_has_alt_text_and_is_small(figures):
    for name, bundle in figures.items():
        for drawing in svgs_of(bundle):
            assert drawing.get("role") == "img" and len(drawing.get("aria-label")) > 40, name
        assert len(bundle.html) < (140_000 if "everything" in name else 40_000), name


def test_every_figure_folds_away_the_numbers_it_shows_and_says_them_in_plain_text(figures):
    for name, bundle in figures.items():
        table = ET.fromstring(re.search(r"<table.*</table>", bundle.html, re.S)[0])
        assert "<details>" in bundle.html, name
        for row in table.iter("tr"):
            words = [cell.text for cell in row]
            assert any(all(w in line for w in words) for line in bundle.text.splitlines()), words


def test_the_same_call_gives_the_same_bytes_in_every_process(figures):
    code = """
import hashlib, sys
sys.path.insert(0, "tests")
from test_charts import every_figure
assert "matplotlib.pyplot" not in sys.modules
print([hashlib.sha256(f.html.encode() + f.png).hexdigest() for f in every_figure().values()])"""
    other, again = (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )
    here = [hashlib.sha256(f.html.encode() + f.png).hexdigest() for f in figures.values()]
    assert other == again == f"{here}\n"


def test_a_chart_comes_with_a_picture_for_front_ends_that_refuse_html(figures):
    for name, bundle in figures.items():
        assert bool(bundle.png) == name.startswith(("ladder", "speed")), name
    data, metadata = figures["ladder"]._repr_mimebundle_()
    png = base64.b64decode(data["image/png"])
    assert len(png) < 60_000 and b"Software" not in png
    width = metadata["image/png"]["width"]
    assert Image.open(io.BytesIO(png)).width == 2 * width, "crisp on fine screens"


def test_a_readers_own_matplotlib_settings_change_nothing(figures):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "pink", "svg.fonttype": "path"}):
        assert charts.ladder(2) == figures["ladder"]
        assert matplotlib.rcParams["font.size"] == 30, "and are not changed"


def test_colours_are_variables_with_a_fallback_never_literals_in_the_drawing(figures):
    for name, bundle in figures.items():
        drawing = "".join(re.findall(r"<svg.*?</svg>", bundle.html, re.S))
        assert not re.search(r"[ :\"]#[0-9a-fA-F]{3}\b|[ :]#[0-9a-fA-F]{6}|rgb\(", drawing), name
        assert "<style" not in drawing, "it would be the whole page's"
    light, dark = re.findall(
        r"--i:var\(--lab-ink,(#\w+)\);--m:var\(--lab-muted,(#\w+)\);--f:var\(--lab-faint,(#\w+)\);"
        r"\s*--a:var\(--lab-accent,(#\w+)\);--p:var\(--lab-paper,(#\w+)\)",
        figures["ladder"].html,
    )
    assert light == (look.INK, look.MUTED, look.FAINT, look.ACCENT, look.PAPER)
    assert not set(light) & set(dark)
    with pytest.raises(KeyError):
        plot(lambda axes: axes.plot([1, 2], color="#123456"), 100, "a colour that has no variable")


def test_ids_are_unique_on_a_page_and_every_reference_has_its_target(figures):
    drawings = [d for f in figures.values() for d in re.findall(r"<svg.*?</svg>", f.html, re.S)]
    ids = [set(re.findall(r' id="([^"]+)"', drawing)) for drawing in drawings]
    assert sum(map(len, ids)) == len(set().union(*ids)) > 5
    for drawing, own in zip(drawings, ids, strict=True):
        assert set(re.findall(r"(?:url\(|href=\")#(\w+)", drawing)) <= own


def test_nothing_is_drawn_outside_its_drawing(figures):
    for name, bundle in figures.items():
        for drawing in svgs_of(bundle):
            _, _, width, height = map(float, drawing.get("viewBox").split())
            for shape in drawing.iter():
                x, y = (float(shape.get(k, 0)) for k in "xy")
                w, h = (float(shape.get(k, 0)) for k in ("width", "height"))
                assert min(x, y) >= -1 and x + w <= width + 1 and y + h <= height + 1, (name, shape)


def test_the_ladder_marks_the_step_in_hand_and_labels_who_measured(figures):
    drawing = svg_of(figures["ladder"])
    bold = [t.text for t in drawing.iter("text") if "font-weight: 700" in t.get("style")]
    assert "Shared-memory tiles" in bold and "Naive" not in bold
    assert "T4: reported, R1" in figures["ladder"].html
    assert "RTX 2080 Super: reported, R3" in figures["ladder"].html
    # R1 at 2048: 28.7 ms against PyTorch's 4.203; R3: 313.8 of 9135.9 GFLOPS
    row = next(line for line in figures["ladder"].text.splitlines() if line.startswith("2 "))
    assert row.split()[-2:] == ["15", "3.4"] or row.split()[-3:-1] == ["15", "3.4"]


def test_the_ladder_shows_this_books_own_runs_filled_and_stale_ones_starred(tmp_path):
    runs = [measured_run(step=s, N=2048) for s in (1, 2)]
    runs[0]["source_hash"] = "0" * 16
    records.write(tmp_path / "h200.json", record(*runs))
    bundle = charts.ladder(2, directory=tmp_path)
    assert "H200 SXM: measured" in bundle.html
    assert "50*" in bundle.text, "step 1 was measured with another version"
    assert "another version of this kernel" in bundle.html


def test_with_many_gpus_the_ladder_draws_three_and_its_table_has_all(tmp_path):
    named = {device.key: device for device in devices.values()}
    for key, device in named.items():
        runs = [measured_run(step=s, N=2048) for s in (1, 2)]
        name = f"NVIDIA {device.cuda_name}"
        records.write(tmp_path / f"{key}.json", record(*runs, gpu=key, gpu_name=name))
    bundle = charts.ladder(2, directory=tmp_path)
    drawn = [t.text for t in svg_of(bundle).iter("text")]
    heads = [labels.short(device) for device in named.values()]
    assert [head for head in heads if head in drawn] == heads[:3]
    assert all(f"{device.name} (measured)" in bundle.text for device in named.values())
    assert f"In the table only: {named['rtx3090'].name}" in bundle.html


def test_the_ladder_refuses_a_size_that_nobody_recorded():
    with pytest.raises(ValueError, match="no record has two steps at N = 77"):
        charts.ladder(2, N=77)


def test_lines_are_labelled_with_what_tells_them_apart(tmp_path):
    tiles = [ladder[2](TILE=t) for t in (32, 16)]
    runs = [
        measured_run(N=N) | {"macros": dict(v.macros), "kernel": v.key}
        for v in tiles
        for N in (256, 512)
    ]
    records.write(tmp_path / "h200.json", record(*runs))
    bundle = charts.speed(*tiles, gpu="h200", directory=tmp_path)
    labels = [t.text for t in svg_of(bundle).iter("text")]
    assert "TILE=32" in labels and "TILE=16" in labels
    assert bundle.text.splitlines()[-1].split() == ["512", "50.0", "50.0"]


def test_labels_at_the_ends_of_lines_do_not_overlap():
    for given in ([0.5], [0.2, 0.6], [0.5, 0.5, 0.51], [0, 0, 0.01, 0.9], [0.3, 0.99, 1, 1]):
        placed = speeds._apart(given, 0.08)
        assert all(b - a >= 0.0799 for a, b in pairwise(placed)), placed
        assert placed[0] >= 0 and placed[-1] <= 1, placed
    assert speeds._apart([0.2, 0.6], 0.08).tolist() == [0.2, 0.6], "where there is room, nothing"


def test_sizes_are_labelled_as_plain_numbers_at_powers_of_two(figures):
    labels = [t.text for t in svg_of(figures["speed %"]).iter("text")]
    assert labels[:4] == ["256", "512", "1024", "2048"] and "768" not in labels
    svg = svg_of(figures["speed"])
    assert {"256", "4096", "0", "5 000"} <= {t.text for t in svg.iter("text")}


def test_a_chart_without_data_says_so():
    with pytest.raises(ValueError, match="nothing is recorded for these variants on L4"):
        charts.speed(ladder[2](), gpu="l4")
    with pytest.raises(ValueError, match="choose"):
        charts.speed(ladder[2](), unit="furlongs")


def test_a_step_stands_for_its_default_variant_and_gpus_for_themselves_in_any_case():
    assert charts.speed(ladder[2], gpu="T4") == charts.speed(ladder[2](), gpu="t4")
    assert charts.moves(ladder[2], ladder[1]) == charts.moves(ladder[2](), ladder[1]())
    with pytest.raises(ValueError, match="gpu='T5' is not known; known are t4, rtx2080s, a100"):
        charts.speed(ladder[2], gpu="T5")
    with pytest.raises(TypeError, match=r"2 \(int\) is no variant of a step. Use ladder\[2\]"):
        charts.moves(2)


def test_a_report_of_the_step_with_other_macros_is_shown_and_says_which():
    alone = charts.speed(ladder[2], gpu="t4", unit="GFLOPS")
    header = alone.text.splitlines()[2]
    assert "R1" in header and "R2, ACCUMULATORS=4" in header
    assert "R2: “CUDA SGEMM optimization" in alone.html
    assert "ladder a: A third-party ladder on a T4" in alone.html
    both = charts.speed(ladder[2], ladder[2](ACCUMULATORS=4), gpu="t4", unit="GFLOPS")
    header = both.text.splitlines()[2]
    assert "ACCUMULATORS=4, R2" in header and "R2, ACCUMULATORS=4" not in header, "once"
    naive = charts.speed(ladder[1], gpu="t4", unit="GFLOPS").text
    assert "COALESCED=0" not in naive, "whoever has the very kernel is shown with that alone"


def test_marks_in_one_place_part_company():
    assert speeds._lanes([100, 100, 100], 5) == [-1, 0, 1]
    assert speeds._lanes([13, 50, 12], 5) == [-0.5, 0, 0.5]
    assert speeds._lanes([], 5) == []


class Counted:
    def __init__(self, **values):
        self.__dict__.update(
            dict.fromkeys(
                ["instructions", "ffma", "global_load_requests", "global_load_sectors",
                 "global_store_sectors", "shared_load_instructions", "shared_load_wavefronts",
                 "shared_store_wavefronts", "barriers"], 0), by_class={}
        )  # fmt: skip
        self.__dict__.update(values)


def test_moves_puts_two_kernels_side_by_side_with_their_ratio():
    before = Counted(instructions=1000, ffma=64, global_load_requests=2, global_load_sectors=64)
    after = Counted(instructions=1000, ffma=64, global_load_requests=2, global_load_sectors=8,
                    by_class={"ffma": 500, "move": 1})  # fmt: skip
    bundle = charts.moves(("after", after), ("before", before))
    rows = {line[:24].strip(): line.split()[-3:] for line in bundle.text.splitlines()}
    assert rows["global sectors loaded"] == ["64", "8", "×0.12"]
    assert rows["FLOP per byte of sectors"] == ["0.0625", "0.500", "×8"]
    assert rows["– ffma"] == ["0", "500", "–"] and rows["– other"] == ["0", "1", "–"]
    assert not any("shared" in row for row in rows), "rows of zeros are left out"


def test_moves_takes_recorded_counters_of_variants():
    bundle = charts.moves(ladder[1](), ladder[1](COALESCED=0))
    assert "COALESCED=0" in bundle.text and "COALESCED=1" in bundle.text
    assert "1 Naive" in charts.moves(ladder[2](), ladder[1]()).text


def test_the_tiling_names_the_strips_that_a_block_reads():
    bundle = charts.tiling(ladder[2](TILE=32), 96, 128, 160, (1, 2))
    assert "rows 32 to 63 of A and columns 64 to 95 of B" in bundle.text
    rows = dict(re.split(r"  +", line) for line in bundle.text.splitlines()[2:])
    assert rows["blocks"] == "12"
    assert rows["floats of A that a block needs"] == str(32 * 160)
    assert rows["blocks that need one element of A"] == "4"


def test_the_tiling_of_an_edge_block_stops_at_the_edge():
    bundle = charts.tiling(ladder[2](TILE=32), 40, 40, 40, (1, 1))
    assert "rows 32 to 39 of A" in bundle.text
    with pytest.raises(ValueError, match="2×2 tiles"):
        charts.tiling(ladder[2](TILE=32), 40, 40, 40, (2, 0))


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "sectors"),
    [
        (LANES, 0, (256, 256), 32),
        (0, LANES, (256, 256), 4),
        (0, 0, (256, 256), 1),
        (0, LANES, (64, 97), 4),
        (1, LANES, (64, 97), 5),  # row 1 starts 4 bytes into a sector
        (LANES, 0, (32, 1), 4),
    ],
)
def test_a_warps_sectors_are_counted_from_the_addresses(rows, columns, shape, sectors):
    bundle = charts.warp_access(("here", rows, columns), shape=shape)
    assert f": {sectors} sector{'s' * (sectors > 1)}, " in bundle.text.splitlines()[0]
    from sgemm_lab.simt.counters import global_sectors

    addresses = 4 * (np.broadcast_to(rows, 32) * shape[1] + columns)
    assert global_sectors(addresses, np.ones(32, bool), 32) == sectors, "the machine agrees"


def test_an_access_outside_the_drawing_is_refused():
    with pytest.raises(ValueError, match="outside the 32×32"):
        charts.warp_access(("far", 0, LANES + 8), shape=(64, 64))


def test_tables_escape_their_cells_and_line_up():
    assert "<td>a&lt;b</td>" in table_html(["x"], [["a<b"]])
    assert table_text(["name", "n"], [["long name", 5], ["x", 123]]) == (
        "name         n\nlong name    5\nx          123"
    )


def test_a_bundle_shows_our_html_and_our_text():
    bundle = figure("<svg/>", "alt", ["h"], [["1"]])
    shown = {"text/html": bundle.html, "text/plain": bundle.text}
    assert bundle._repr_mimebundle_() == (shown, {}), "and no picture where none was drawn"
    assert repr(bundle) == bundle.text


def test_every_device_has_a_short_name():
    names = [labels.short(device) for device in devices.values()]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 5


def facts(bundle: Bundle) -> dict[str, list[str]]:
    """The rows of a bundle's plain table: first cell → the others."""
    lines = [re.split(r"  +", line.strip()) for line in bundle.text.splitlines()]
    return {first: rest for first, *rest in lines}


def test_outputs_are_those_that_the_kernel_writes():
    shown = facts(charts.outputs(ladder[2], ladder[5], ladder[7], ladder[9]))
    assert shown["2 Shared-memory tiles"] == ["32×32", "1024", "1", "1×32", "33", "4"]
    assert shown["5 A column of outputs a thread"] == ["64×64", "256", "16", "16×32", "48", "4"]
    assert shown["7 4×4 outputs a thread"] == ["64×64", "256", "16", "8×64", "72", "16"]
    assert shown["9 A tile for each warp"][:5] == ["128×128", "256", "64", "32×64", "96"]
    one = charts.outputs(ladder[5](TILE=32, BK=32, TM=4), ladder[5](TILE=32, BK=32, TM=2))
    assert "TM=4: 4 a thread" in one.text and "TM=2: 2 a thread" in one.text


def test_boxes_cover_a_mask_once():
    mask = np.random.default_rng(3).random((20, 30)) < 0.5
    mask[4:9, 10:20] = True
    again = np.zeros(mask.shape, int)
    for row, column, height, width in pictures.boxes(mask):
        again[row : row + height, column : column + width] += 1
    assert (again == mask).all()
    assert pictures.boxes(np.ones((5, 7), bool)) == [(0, 0, 5, 7)]


def test_a_schedule_is_the_order_that_the_machine_executes():
    text = charts.schedule(ladder[9], ladder[10], ladder[11], tiles=2).text
    plain = "fetch 1, barrier, put 1, barrier, compute 1, fetch 2, barrier, put 2, barrier"
    ahead = "fetch 1, barrier, put 1, barrier, fetch 2, compute 1, barrier, put 2, barrier"
    double = "fetch 1, put 1, barrier, fetch 2, compute 1, put 2, barrier, compute 2."
    assert f"9 A tile for each warp: {plain}, compute 2;" in text
    assert f"10 Prefetch: {ahead}, compute 2;" in text
    assert f"11 Double buffer: {double}" in text
    assert "512 ffma" in text and "The order in which" in charts.schedule(ladder[2](TILE=8)).html


def test_resources_stand_beside_what_others_reported():
    bundle = charts.resources(ladder[1], ladder[2])
    rows = facts(bundle)
    used = records.resources(ladder[2](), "sm_75").registers
    assert rows["2 Shared-memory tiles"][:2] == ["1024, 8192 B", f"{used}, 100 % threads"]
    assert rows["– R1 tiled"] == ["1024", "42, 99.97 % measured"]
    assert rows["– R2 tiled, 4 sums"] == ["1024, 8192 B", "62, 100 % threads"]
    assert rows["– R2 naive"] == ["1024, 0 B", "58, 100 % threads"]
    assert "Nothing is spilled" in bundle.text and "R1: “CUDA GEMM kernel" in bundle.text
    many = charts.resources(ladder[8], ladder[8](TILE=64, BK=32, TM=8))
    assert ("B spilled" in many.text) != ("Nothing is spilled" in many.text)
    assert all(devices[key].arch in bundle.text for key in tables.GPUS)
    assert [devices[key].arch for key in tables.GPUS] == list(records.ARCHS)


def two_steps(directory, N=4096):
    """Steps 1 and 2 on an H200, the second twice as fast."""
    runs = [measured_run(step=s, N=N) for s in (1, 2)]
    runs[0]["ratio"] = {"low": 0.24, "median": 0.25, "high": 0.26}
    records.write(directory / "h200.json", record(*runs))


def test_results_mark_the_fastest_at_each_shape(tmp_path):
    two_steps(tmp_path)
    rows = facts(charts.results(directory=tmp_path))
    assert rows["1 Naive"] == ["25"] and rows["2 Shared-memory tiles"] == ["[50]"]
    with pytest.raises(ValueError, match="nothing is recorded"):
        charts.results((1, 2, 3), directory=tmp_path)


def test_gains_are_over_the_step_before(tmp_path):
    two_steps(tmp_path)
    row = facts(charts.gains(directory=tmp_path))["2 Shared-memory tiles"]
    assert row == [ladder[2].summary, "×2.00", "50"]


def test_our_kernels_stand_beside_r3s_on_the_same_chip():
    bundle = charts.beside("R3")
    rows = facts(bundle)
    assert rows["2 Shared-memory tiles"][3:5] == ["1.7", "0.03"]
    assert rows["10 Prefetch"][3:5] == ["45.8", "0.90"]
    ratio = records.runs(gpu="h200", step=7, N=4096, macros=ladder[7]().macros, kind="measured")[0]
    low, middle, high = ratio.ratio
    assert rows["7 4×4 outputs a thread"][1:3] == [f"{middle:.3f}", f"{low:.3f}–{high:.3f}"]
    assert "its kernels unchanged, run on one H200" in bundle.text


def test_bounds_follow_from_counters_and_data_sheets():
    bundle = charts.bounds(ladder[1], ladder[2])
    # 1.5 wavefronts a load and 1/16 a store: 1.5625 × 128 bytes at 64 a cycle, 2 FFMA a cycle
    row = facts(bundle)["2 Shared-memory tiles"]
    assert row[3:] == ["1.56", "16 %", "8.00", "25.6"]  # 1024 blocks, one on each of 40 SMs
    assert facts(bundle)["1 Naive"][3:5] == ["–", "–"]
    assert "T4, argued, not measured" in bundle.text
    assert "25 FLOP per byte" in bundle.text, "8.1 TFLOPS / 320 GB/s"


def test_everything_shows_each_gpu_once_and_measured_apart_from_reported():
    bundle = charts.everything(7)
    titles = [d.get("aria-label").partition(":")[0] for d in svgs_of(bundle)]
    assert titles == ["T4, reported", "RTX 2080 Super, reported", "H100 SXM, reported",
                      "H200 SXM, measured", "H200 SXM, reported"]  # fmt: skip
    assert "CPU" not in bundle.text and "Nsight" not in bundle.text
    # R3's step 11 at 6144: 10384 of 11150 GFLOPS
    line = next(
        row for row in bundle.text.splitlines() if re.search(r"11 Double buffer +6144", row)
    )
    assert line.split()[-1] == "93.1"
    bold = [t.text for d in svgs_of(bundle) for t in d.iter("text") if "700" in t.get("style", "")]
    assert {name.removesuffix(" *") for name in bold} == {"7 4×4 outputs a thread"}


def test_where_this_book_measured_a_gpu_other_reports_of_it_are_left_to_tables():
    assert "R3" not in charts.speed(ladder[7], gpu="h200").text
    assert "H200 SXM (reported" not in charts.ladder(7).text


def test_odd_sizes_are_marked_and_not_joined(tmp_path):
    runs = [measured_run(N=N) for N in (2048, 4095, 4096)]
    records.write(tmp_path / "h200.json", record(*runs))
    bundle = charts.speed(ladder[2], directory=tmp_path)
    assert "Hollow: N = 4095." in bundle.html
    labels = [t.text for t in svg_of(bundle).iter("text")]
    assert "4095" not in labels and "4096" in labels
    assert any(line.startswith("4095 ") for line in bundle.text.splitlines())


def test_a_wide_load_shows_all_its_words_and_the_lanes_served_together():
    found = accesses(ladder[7], 64, 64, 16)
    wide = next(e for e in found if (e.space, e.kind, e.size) == ("shared", "load", 16))
    bundle = charts.banks(("wide", wide))
    _, bits, _, _, wavefronts = facts(bundle)["wide"]
    assert bits == "128" and int(wavefronts) == wide.wavefronts and "served together" in bundle.html
    load = next(e for e in found if (e.space, e.kind, e.array) == ("global", "load", "A"))
    row = facts(charts.warp_access(("fetch", load), shape=(64, 16)))["fetch"]
    assert row == ["32", "128", "16", "512", "512"]
