"""The Python that the notebooks share. A notebook imports from here and nowhere else."""

from sgemm_lab.devices import devices
from sgemm_lab.doctor import doctor
from sgemm_lab.ladder import ladder
from sgemm_lab.learn.exercises import given, judge
from sgemm_lab.measure import records
from sgemm_lab.measure.bench import bench
from sgemm_lab.run.backend import cp
from sgemm_lab.run.check import check
from sgemm_lab.run.cubin import machine_code
from sgemm_lab.run.launch import launch
from sgemm_lab.run.profile import accesses, arguments, profile, profile_variant
from sgemm_lab.run.sample import sample
from sgemm_lab.show import charts, source
from sgemm_lab.show.explorer import explore

__all__ = [
    "accesses", "arguments", "bench", "charts", "check", "cp", "devices", "doctor", "explore",
    "given", "judge", "ladder", "launch", "machine_code", "profile", "profile_variant", "records",
    "sample", "source",
]  # fmt: skip
