"""What the schemas of the recorded files are built of."""

from collections.abc import Iterable

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
