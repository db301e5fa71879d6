"""Where the book's files are: in a clone beside the package, installed inside it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # of a clone
BOOK = ROOT / "book"
ARCHIVE = PACKAGE / "compiled.json.xz"

# pyproject.toml gives an installed package its own kernels and measurements.
INSTALLED = (PACKAGE / "kernels").is_dir()
KERNELS = (PACKAGE if INSTALLED else ROOT) / "kernels"
MEASUREMENTS = (PACKAGE if INSTALLED else BOOK) / "measurements"
