"""The machine code of a kernel: what is left when names, line numbers and comments are gone."""

from collections.abc import Iterable

from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.run.nvrtc import compile_code


def machine_code(
    variant: Variant | Step, arch: str = "sm_75", options: Iterable[str] = ()
) -> bytes:
    """The instructions of a variant's kernel on one architecture, such as "sm_90".

    Two kernels with the same bytes are the same program, whatever their sources look like. Neither
    names nor line numbers are among them. `options` are added to the compiler's. Raises what
    `compile_code` raises, and ValueError for step 0, which has no source.
    """
    variant = as_variant(variant)
    step = variant.step
    code = compile_code(step.source, (*variant.options, *options), arch, step.filename)
    return code[step.function]
