"""The Python that the notebooks share. A notebook imports from here and nowhere else."""

from sgemm_lab.devices import devices
from sgemm_lab.doctor import doctor
from sgemm_lab.ladder import ladder
from sgemm_lab.learn import magic
from sgemm_lab.learn.audit import audit, audits
from sgemm_lab.learn.exercises import exercise, given, hint, judge
from sgemm_lab.measure import gains, others, records, studies
from sgemm_lab.measure.bench import bench
from sgemm_lab.measure.limits import limits, load_slots
from sgemm_lab.measure.suspects import suspects
from sgemm_lab.measure.validate import validate
from sgemm_lab.run.backend import cp
from sgemm_lab.run.check import check
from sgemm_lab.run.cubin import machine_code
from sgemm_lab.run.launch import launch
from sgemm_lab.run.profile import accesses, arguments, profile, profile_variant
from sgemm_lab.run.sample import sample
from sgemm_lab.run.sgemm import sgemm
from sgemm_lab.show import charts, source
from sgemm_lab.show.access_explorer import explore_accesses
from sgemm_lab.show.ceilings import explore_limits
from sgemm_lab.show.explorer import explore
from sgemm_lab.show.ladder_explorer import explore_ladder
from sgemm_lab.show.prose import listed, recorded, span, speedups, tell

__all__ = [
    "accesses", "arguments", "audit", "audits", "bench", "charts", "check", "cp", "devices",
    "doctor", "exercise", "explore", "explore_accesses", "explore_ladder", "explore_limits",
    "gains", "given", "hint", "judge", "ladder", "launch", "limits", "listed", "load_slots",
    "machine_code", "others", "profile", "profile_variant", "recorded", "records", "sample",
    "sgemm", "source", "span", "speedups", "studies", "suspects", "tell", "validate",
]  # fmt: skip

magic.register()  # %%kernel, where a notebook imports this
