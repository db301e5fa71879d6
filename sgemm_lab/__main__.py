"""python -m sgemm_lab COMMAND: what can be done from a command line, a row each."""

import argparse
import sys
from importlib import import_module

from sgemm_lab.paths import INSTALLED

# command -> (module, what it does); the module's main(argv) returns the exit status, None for 0
COMMANDS = {
    "run": ("book", "execute the notebooks and write their outputs; --check compares only"),
    "notebooks": ("notebooks", "are the notebooks as they must be committed? --fix mends them"),
    "check": (
        "run.check",
        "is a kernel right? compare it with float64 on shapes that break kernels",
    ),
    "audit": ("learn.audit", "what is wrong with a kernel? thirteen ways to be wrong, tried"),
    "judge": ("learn.exercises", "is a kernel in a file the answer to an exercise of the book?"),
    "compile": ("run.compile", "does every setting compile for every architecture?"),
    "bench": (
        "measure.bench",
        "time kernels on this machine's GPU beside cuBLAS, record the result",
    ),
    "validate": ("measure.validate", "is a file of measurements that somebody sent good to take?"),
    "profile": ("run.profile", "count what a kernel does, on the PTX machine (no GPU needed)"),
    "record": ("measure.records", "recount and recompile what the charts show of every kernel"),
    "release": ("measure.release", "is everything recorded of these very kernels?"),
    "repo": ("repo", "the repository's address, and the branch or tag that readers get"),
    "doctor": ("doctor", "what this machine can run, and what is missing"),
}
CLONE = {"run", "notebooks", "record", "release", "repo"}  # what is about the book's own files


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sgemm_lab",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:9} {what}" for name, (_, what) in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the command's own; try --help")
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    given = parser.parse_args(argv)
    if INSTALLED and given.command in CLONE:
        print(f"{given.command} works in a clone of the book: this is a library", file=sys.stderr)
        return 2
    module = import_module(f"sgemm_lab.{COMMANDS[given.command][0]}")
    return module.main(given.arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
