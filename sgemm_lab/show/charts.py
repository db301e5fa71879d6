"""The book's figures and tables, under one name: `charts.ladder(2)`.

Each function returns a Bundle: a picture with its table, or a table, and plain text that says the
same.
"""

from sgemm_lab.show.pictures import banks, outputs, schedule, tiling, warp_access
from sgemm_lab.show.speeds import everything, ladder, speed
from sgemm_lab.show.tables import beside, bounds, gains, moves, resources, results

__all__ = [
    "banks", "beside", "bounds", "everything", "gains", "ladder", "moves", "outputs", "resources",
    "results", "schedule", "speed", "tiling", "warp_access",
]  # fmt: skip
