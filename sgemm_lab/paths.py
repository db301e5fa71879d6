"""Where the book's files are: one clone, one root."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
BOOK = ROOT / "book"
MEASUREMENTS = BOOK / "measurements"
