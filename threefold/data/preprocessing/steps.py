"""A step of preprocessing: fitted once, then applied and inverted, described by JSON values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from threefold.errors import ThreefoldError

STEPS: dict[str, type[Step]] = {}


@dataclass(frozen=True)
class Step(ABC):
    """A change of data; its fields are JSON values and tuples of them."""

    NAME: ClassVar[str]

    def __init_subclass__(cls) -> None:
        STEPS[cls.NAME] = cls

    @abstractmethod
    def apply(self, data: Any) -> Any:
        """Change data from the user's form towards the model's."""

    def invert(self, data: Any) -> Any:
        """Change data from the model's form towards the user's; unchanged by default."""
        return data

    def to_dict(self) -> dict[str, Any]:
        """The name and the fields, as JSON values."""
        return {"step": self.NAME, **{part.name: getattr(self, part.name) for part in fields(self)}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Step:
        """Read the fields that `to_dict` returned."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def read_step(values: dict[str, Any]) -> Step:
    """The step that `Step.to_dict` described."""
    import threefold.data.preprocessing.categories
    import threefold.data.preprocessing.media
    import threefold.data.preprocessing.numbers
    import threefold.data.preprocessing.series_scales
    import threefold.data.preprocessing.text  # noqa: F401

    name = values.get("step")
    if name not in STEPS:
        raise ThreefoldError(f"unknown step {name!r}; it was written by a newer Threefold")
    return STEPS[name].from_dict({key: v for key, v in values.items() if key != "step"})
