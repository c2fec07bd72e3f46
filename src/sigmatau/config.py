"""Typed settings: one source for the Python argument, the command line, the file and the manual."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sigmatau.errors import ConfigError, nearest


class Settings(BaseModel):
    """Settings that refuse what they do not know and say what was meant."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Make settings of keyword arguments, with errors for people."""
        for name in given:
            if name not in cls.model_fields:
                raise ConfigError(f"unknown setting {name!r}; {nearest(name, cls.model_fields)}")
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError("; ".join(_told(cls, e) for e in error.errors())) from None


def _told(cls: type[BaseModel], error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    reason = str(error["msg"]).removeprefix("Value error, ")
    if not place:
        return reason
    told = f"{place}={error['input']!r}: {reason[:1].lower()}{reason[1:]}"
    about = cls.model_fields.get(place)
    return f"{told} ({about.description})" if about is not None and about.description else told


class TrainingSettings(Settings):
    """How a task is trained, whatever the method."""

    epochs: int = Field(20, ge=1, description="passes over a task's training data")
    batch_size: int = Field(100, ge=1, description="samples a step")
    lr: float = Field(1e-3, gt=0, description="Adam's learning rate in the first epoch")
    lr_decay: float = Field(0.95, gt=0, le=1, description="factor on the rate after each epoch")
    weight_decay: float = Field(1e-4, ge=0, description="pull of the task's weights towards 0")
    select_last: int = Field(
        5, ge=1, description="keep the epoch that validates best among this many last ones"
    )
    seed: int = Field(0, ge=0, description="where all randomness comes from")
