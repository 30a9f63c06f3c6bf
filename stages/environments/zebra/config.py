"""Settings of zebra grids: sizes and words."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.environments.config import GeneratorConfig

WORDS: dict[str, tuple[str, ...]] = {
    "name": ("Ada", "Bruno", "Clara", "Dario", "Edith", "Felix"),
    "pet": ("cat", "parrot", "turtle", "rabbit", "goldfish", "ferret"),
    "drink": ("tea", "coffee", "milk", "juice", "cider", "water"),
    "colour": ("red", "blue", "green", "white", "yellow", "grey"),
    "hobby": ("chess", "painting", "gardening", "sailing", "baking", "fencing"),
}
"""The values from which grids are drawn, by attribute."""


class ZebraConfig(GeneratorConfig):
    """Difficulty of generated zebra grids. Sizes are drawn uniformly from their ranges, which are inclusive."""

    environment: Literal["zebra"] = Field(default="zebra", description="Name of the environment.")
    houses: tuple[Annotated[int, Field(ge=2, le=6)], Annotated[int, Field(ge=2, le=6)]] = Field(
        default=(3, 3), description="Number of houses."
    )
    attributes: tuple[Annotated[int, Field(ge=2, le=5)], Annotated[int, Field(ge=2, le=5)]] = Field(
        default=(3, 3), description="Number of attributes, including the name."
    )
    questions: int = Field(default=6, ge=1, le=12, description="Largest number of questions.")
    fixed_words: bool = Field(
        default=False, description="Whether all grids of a size have the same attributes and values, in the same order."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("houses", "attributes"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name}: found {least} to {most}, expected the smaller number first")
        return self


TIERS: dict[str, ZebraConfig] = {
    "easy": ZebraConfig(houses=(2, 3), attributes=(2, 3)),
    "medium": ZebraConfig(houses=(4, 4), attributes=(4, 4)),
    "full": ZebraConfig(houses=(6, 6), attributes=(5, 5)),
}
