"""What a teacher did."""

from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass
class Summary:
    """Counts of a teacher since it was made. Items are rows of batches, tokens of one item are not counted one by one."""

    strategy: str = ""
    #: Visits of the teacher, each of which served a burst, and the seconds that it computed and that the training loop waited.
    visits: int = 0
    visit_seconds: float = 0.0
    wait_seconds: float = 0.0
    #: Bytes of weights copied to the device.
    copied_bytes: int = 0
    #: Items answered from the cache, items computed, and records whose checksum was wrong.
    cached_hits: int = 0
    computed_items: int = 0
    damaged_records: int = 0
    #: Items in the cache now.
    cached_items: int = 0
    #: True if an epoch after the first found almost nothing in the cache.
    few_hits: bool = False
    #: Why the cache is no longer written.
    warning: Optional[str] = None

    @property
    def hit_rate(self) -> float:
        """Share of items answered from the cache, 0 to 1."""
        items = self.cached_hits + self.computed_items
        return self.cached_hits / items if items else 0.0

    def __str__(self) -> str:
        parts = [
            f"teacher: {self.visits} visits ({self.strategy}), {self.visit_seconds:.2f} s computing, waited {self.wait_seconds:.2f} s",
            f"{self.cached_hits} of {self.cached_hits + self.computed_items} items from the cache ({100 * self.hit_rate:.1f} %)",
        ]
        if self.copied_bytes:
            parts.append(f"{self.copied_bytes / (1 << 20):.1f} MiB of weights copied")
        if self.damaged_records:
            parts.append(f"{self.damaged_records} damaged records computed again")
        if self.few_hits:
            parts.append("almost no input was seen before (augmented inputs are new inputs)")
        if self.warning:
            parts.append(self.warning)
        return "; ".join(parts)
