"""`%%kernel`: a cell that holds CUDA C++ instead of Python."""

import re
import sys
from keyword import iskeyword

from sgemm_lab.learn.exercises import EXERCISES, judge
from sgemm_lab.learn.judge import Verdict

USAGE = (
    "%%kernel 05.1 judges the text of this cell as exercise 05.1 and keeps it as `attempt`; "
    "%%kernel name keeps it as `name`. Both may be given."
)


def kernel(line: str, cell: str) -> Verdict | None:
    """Keeps the text of the cell in a variable, and judges it as the exercise that `line` names.

    The line of the magic counts as line 1, so that messages name the lines of the cell.
    """
    from IPython import get_ipython
    from IPython.core.error import UsageError

    words = line.split()
    asked = [word for word in words if word in EXERCISES]
    names = [word for word in words if word not in EXERCISES]
    if not words or len(asked) > 1 or len(names) > 1:
        raise UsageError(USAGE)
    name = names[0] if names else "attempt"
    if not name.isidentifier() or iskeyword(name):
        raise UsageError(
            f"{name} is neither a name nor an exercise. {USAGE} Exercises: {', '.join(EXERCISES)}."
        )
    text = f"\n{cell}"
    get_ipython().push({name: text})
    if asked:
        return judge(asked[0], text)
    functions = re.findall(r"__global__[^;{}(]*?(\w+)\s*\(", text)
    told = f"with kernel {', '.join(functions)}" if functions else "without a kernel"
    lines = len(cell.splitlines())
    print(f"{name}: {lines} line{'s' * (lines != 1)} {told}")
    return None


def register() -> None:
    """Makes the magic known to the IPython that imports this, if one does."""
    if "IPython" not in sys.modules:
        return
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        shell.register_magic_function(kernel, "cell", "kernel")
