"""The page of `deerstalker study`: runs and benchmarked models side by side."""

import json
from collections.abc import Sequence

from artifacts.errors import BadInputError
from artifacts.local.input_files import with_home
from flows.report.html.page import page
from flows.report.study.benchmark import BenchmarkModels
from flows.report.study.study import RunStudy, figures, page_values, pictures

PAGE = "study.html"


def study_files(runs: Sequence[RunStudy], benchmark: BenchmarkModels | None) -> dict[str, bytes]:
    """Returns the files of a study by name: the pictures, `study.json` and the page."""
    drawn = pictures(runs, benchmark)
    document = json.dumps(figures(runs, benchmark), indent=2, ensure_ascii=False, allow_nan=False)
    values = page_values(runs, benchmark)
    return {**drawn, "study.json": f"{document}\n".encode(), PAGE: page(PAGE, **values, pictures=drawn).encode()}


def write_study(folder: str, files: dict[str, bytes]) -> str:
    """Writes the files of a study into a local folder, which is made if it is missing, and returns the page's path.

    Raises:
        BadInputError: The folder cannot be written to.
    """
    path = with_home(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (path / name).write_bytes(data)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInputError(
            f"--output {folder}", f"cannot be written to ({reason})", "a folder", "name another folder"
        ) from error
    return str(path.resolve() / PAGE)
