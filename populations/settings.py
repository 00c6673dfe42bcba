"""What a user may set about the memory of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class PopulationSettings:
    """Stored with every session, so that replay rebuilds each session by the settings that it ran under."""

    islands: int = 3
    open_islands_after: int = 500  # judged candidates in an environment; before that there is one island
    migrate_every: int = 50  # judged candidates
    contenders: int = 4  # kept in a cell beside its elite, the elite included
    selectors: Mapping[str, float] = field(
        default_factory=lambda: {"thompson": 0.5, "lexicase": 0.3, "uniform": 0.2}
    )  # weights of the mix

    def __post_init__(self) -> None:
        for name in ("islands", "migrate_every", "contenders"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.selectors or min(self.selectors.values()) < 0 or sum(self.selectors.values()) <= 0:
            raise ValueError("selectors needs weights that are not negative and not all zero")

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "selectors": dict(self.selectors)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> PopulationSettings:
        """Of a session that an older or newer version wrote: names that are not known any more are left out."""
        known = PopulationSettings.__dataclass_fields__
        return PopulationSettings(**{name: value for name, value in data.items() if name in known})
