"""How often an engine rearranged its experts. No metric says it; the first expert-parallel rank logs every time."""

from __future__ import annotations

import re

# A profiling run pretends to rearrange, to reserve memory; no expert moves.
_REARRANGED = re.compile(r"Rearranging experts\b(?![^\n]*\(profile\))")


def count_rearrangements(text: str) -> int:
    """Rearrangements that whole lines of the log of one server show, all engines together."""
    return len(_REARRANGED.findall(text))
