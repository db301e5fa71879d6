import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from test_records import measured_run, record

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.show import charts
from sgemm_lab.show.bundle import Bundle, figure, table_html, table_text

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


def test_the_same_call_gives_the_same_bytes(figures):
    assert {n: f.html for n, f in every_figure().items()} == {n: f.html for n, f in figures.items()}


def test_colours_are_variables_with_a_fallback_never_literals_in_the_drawing(figures):
    for name, bundle in figures.items():
        drawing = re.search(r"<svg.*</svg>", bundle.html, re.S)[0]
        assert not re.search(r"#[0-9a-fA-F]{3}|rgb\(|style=", drawing), name
    style = figures["ladder"].html
    for variable in ("ink", "muted", "faint", "accent", "paper"):
        assert len(re.findall(rf"var\(--lab-{variable},#\w+\)", style)) == 2, "light and dark"


def test_nothing_is_drawn_outside_its_drawing(figures):
    for name, bundle in figures.items():
        drawing = svg_of(bundle)
        _, _, width, height = map(float, drawing.get("viewBox").split())
        for shape in drawing:
            x, y = (float(shape.get(k, shape.get("c" + k, 0))) for k in "xy")
            w, h = (float(shape.get(k, 0)) for k in ("width", "height"))
            assert min(x, y) >= -1 and x + w <= width + 1 and y + h <= height + 1, (name, shape)


def test_the_ladder_marks_the_step_in_hand_and_labels_who_measured(figures):
    drawing = svg_of(figures["ladder"])
    bold = [t.text for t in drawing.iter("text") if t.get("class") == "b"]
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
    placed = charts._labels([(200.0, 0, "a", ""), (201.0, 0, "b", ""), (220.0, 0, "c", "")], 222)
    heights = sorted(float(re.search(r' y="([\d.]+)"', t)[1]) for t in placed)
    assert all(b - a >= 14.9 for a, b in pairwise(heights))
    assert heights[-1] <= 222 + 5


def test_a_chart_without_data_says_so():
    with pytest.raises(ValueError, match="nothing is recorded for these variants on L4"):
        charts.speed(ladder[2](), gpu="l4")
    with pytest.raises(ValueError, match="choose"):
        charts.speed(ladder[2](), unit="furlongs")


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
    rows = {line[:28].strip(): line.split()[-3:] for line in bundle.text.splitlines()}
    assert rows["global sectors loaded"] == ["64", "8", "×0.12"]
    assert rows["FLOP per byte to or from L1"] == ["0.0625", "0.500", "×8"]
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
    assert f"{sectors} sector" in bundle.text.splitlines()[0]
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
    assert bundle._repr_mimebundle_() == {"text/html": bundle.html, "text/plain": bundle.text}
    assert repr(bundle) == bundle.text


def test_every_device_has_a_short_name():
    names = [charts._short(device) for device in devices.values()]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 9
