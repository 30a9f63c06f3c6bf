"""The part of the document of `deerstalker benchmark --json` that a study shows."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from artifacts.documents.parsing import parse_json
from artifacts.errors import BadInputError
from artifacts.local.input_files import read_input
from stages.answering.measured import BenchmarkedModel

_EXPECTED = "the document that `deerstalker benchmark --json` prints"


class BenchmarkModels(BaseModel):
    """The models of a benchmark.

    Attributes:
        puzzles: Name of the puzzles, or of the suite.
        models: The models, in the order of the document.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    puzzles: str
    models: list[BenchmarkedModel] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two models are named {twice!r}")
        return self


def read_benchmark(path: str) -> BenchmarkModels:
    """Returns the benchmark in a file.

    Raises:
        BadInputError: The file cannot be read, or is not such a document; the message names the field.
    """
    data = read_input(path, _EXPECTED, "check the path", where=f"--benchmark {path}")
    content = parse_json(data, f"--benchmark {path}", _EXPECTED)
    try:
        return BenchmarkModels.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "document"
        raise BadInputError(f"--benchmark {path}", f"{field}: {first['msg']}", _EXPECTED) from error
