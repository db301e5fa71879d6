"""What the schemas of the recorded files are built of."""

from collections.abc import Iterable, Mapping

POSITIVE = {"type": "number", "exclusiveMinimum": 0}
SIZE = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
TEXT = {"type": "string", "minLength": 1}


def fields(required: Iterable[str], **properties: dict) -> dict:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


SPREAD = fields(["median"], min=POSITIVE, median=POSITIVE, max=POSITIVE)


def spread(values: Mapping[str, float]) -> tuple[float, float, float]:
    """Min, median and max of a SPREAD; what is not given is the median."""
    return tuple(values.get(name, values["median"]) for name in ("min", "median", "max"))


def disorder(values: Mapping[str, float]) -> str | None:
    """What is wrong with the order of a SPREAD's values, if anything."""
    low, middle, high = spread(values)
    return None if low <= middle <= high else "min ≤ median ≤ max does not hold"
