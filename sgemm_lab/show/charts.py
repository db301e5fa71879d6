"""The book's figures and tables, under one name: `charts.ladder(2)`.

Each function returns a Bundle: a picture with its table, or a table, and plain text that says the
same.
"""

from sgemm_lab.show.ceilings import ceilings, limiters, roofline, waits, wavefronts
from sgemm_lab.show.origins import origins, two_starts, wobble
from sgemm_lab.show.pictures import banks, outputs, schedule, tiling, warp_access
from sgemm_lab.show.scaling import cpu, r1, scaling, shares, starts, tiles
from sgemm_lab.show.slower import (
    over,
    slower_reports,
    slower_settings,
    slower_steps,
    suspicion,
    twins,
)
from sgemm_lab.show.speeds import everything, ladder, speed
from sgemm_lab.show.tables import beside, bounds, gains, moves, resources, results

__all__ = [
    "banks", "beside", "bounds", "ceilings", "cpu", "everything", "gains", "ladder",
    "limiters", "moves", "origins", "outputs", "over", "r1", "resources", "results", "roofline",
    "scaling", "schedule", "shares", "slower_reports", "slower_settings", "slower_steps", "speed",
    "starts", "suspicion", "tiles", "tiling", "twins", "two_starts", "waits", "warp_access",
    "wavefronts", "wobble",
]  # fmt: skip
