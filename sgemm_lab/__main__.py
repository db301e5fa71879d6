"""python -m sgemm_lab run | check | bench | validate | profile | record | doctor"""

import argparse
import sys
from importlib import import_module

# command -> (module, what it does); the module's main(argv) returns the exit status, None for 0
COMMANDS = {
    "run": ("book", "execute the notebooks and write their outputs; --check compares only"),
    "check": (
        "run.check",
        "is a kernel right? compare it with float64 on shapes that break kernels",
    ),
    "bench": (
        "measure.bench",
        "time kernels on this machine's GPU beside cuBLAS, record the result",
    ),
    "validate": ("measure.validate", "is a file of measurements that somebody sent good to take?"),
    "profile": ("run.profile", "count what a kernel does, on the PTX machine (no GPU needed)"),
    "record": ("measure.records", "recount and recompile what the charts show of every kernel"),
    "release": ("measure.release", "is everything recorded of these very kernels?"),
    "doctor": ("doctor", "what this machine can run, and what is missing"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:8} {what}" for name, (_, what) in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the command's own; try --help")
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    given = parser.parse_args(argv)
    module = import_module(f"sgemm_lab.{COMMANDS[given.command][0]}")
    return module.main(given.arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
