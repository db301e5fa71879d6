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
from sgemm_lab.show import bundle as look
from sgemm_lab.show import charts
from sgemm_lab.show.bundle import Bundle, figure, plot, table_html, table_text

LANES = np.arange(32)


def every_figure():
    return {
        "ladder": charts.ladder(2),
        "speed": charts.speed(ladder[1](), ladder[0](), gpu="t4", unit="GFLOPS"),
        "speed %": charts.speed(ladder[2](LAYOUT=1), ladder[1](), gpu="rtx2080s"),
        "tiling": charts.tiling(ladder[2](TILE=8), 100, 60, 50, (2, 3)),
        "warp": charts.warp_access(("rows", LANES, 0), ("columns", 0, LANES), shape=(64, 64)),
    }


@pytest.fixture(scope="module")
def figures():
    return every_figure()


def svg_of(bundle: Bundle) -> ET.Element:
    return ET.fromstring(re.search(r"<svg.*</svg>", bundle.html, re.S)[0])


def test_every_figure_is_well_formed_has_alt_text_and_is_small(figures):
    for name, bundle in figures.items():
        drawing = svg_of(bundle)
        assert drawing.get("role") == "img" and len(drawing.get("aria-label")) > 40, name
        assert len(bundle.html) < 40_000, name


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
        drawing = re.search(r"<svg.*</svg>", bundle.html, re.S)[0]
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
    drawings = [re.search(r"<svg.*</svg>", f.html, re.S)[0] for f in figures.values()]
    ids = [set(re.findall(r' id="([^"]+)"', drawing)) for drawing in drawings]
    assert sum(map(len, ids)) == len(set().union(*ids)) > 5
    for drawing, own in zip(drawings, ids, strict=True):
        assert set(re.findall(r"(?:url\(|href=\")#(\w+)", drawing)) <= own


def test_nothing_is_drawn_outside_its_drawing(figures):
    for name, bundle in figures.items():
        drawing = svg_of(bundle)
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
        placed = charts._apart(given, 0.08)
        assert all(b - a >= 0.0799 for a, b in pairwise(placed)), placed
        assert placed[0] >= 0 and placed[-1] <= 1, placed
    assert charts._apart([0.2, 0.6], 0.08).tolist() == [0.2, 0.6], "where there is room, nothing"


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
    assert charts._lanes([100, 100, 100], 5) == [-1, 0, 1]
    assert charts._lanes([13, 50, 12], 5) == [-0.5, 0, 0.5]
    assert charts._lanes([], 5) == []


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
    names = [charts._short(device) for device in devices.values()]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 9
