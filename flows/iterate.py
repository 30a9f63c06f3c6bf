"""The `iterate` flow: continues a run with its frozen recipe."""

from datetime import datetime
from typing import Self

from prefect import flow
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.layout import IN_ATTEMPT, REFRESHED_NAME, RunLayout, artifact_of
from artifacts.manifest import Manifest
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.checks.fitting import refuse_undivided
from flows.iteration import begin, run_iterations
from flows.lookup.history import read_run
from flows.lookup.stages import PARTS
from flows.opening import (
    REFRESH,
    ProfileName,
    ProfileOverrides,
    StageName,
    StoreAddress,
    fitting_profile,
    opened_run,
    requested_at,
)


class IterateRequest(Config):
    """Parameters of the `iterate` flow."""

    run: str = Field(default="quickstart", description="Name of an existing run.")
    more: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Number of iterations to add to the finished ones."
    )
    until: int | None = Field(default=None, ge=1, le=1_000_000, description="Last iteration to run; instead of `more`.")
    profile: ProfileName = "cpu"
    store: StoreAddress = DEFAULT_STORE
    profile_overrides: ProfileOverrides = Field(default=[])
    refresh: list[StageName] = Field(default=[], description=REFRESH)

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if (self.more is None) == (self.until is None):
            raise ValueError("give either `more` or `until`")
        return self


@flow(name="iterate", flow_run_name="iterate {request.run}", persist_result=False, validate_parameters=True)
def iterate(request: IterateRequest) -> str:
    """Continues a run and returns the key of its report.

    Stages of finished iterations end `Cached`. The test split is not used: `train` evaluates on it before and after
    training.

    Args:
        request: Run, number of iterations, profile, store, and stages to run again.
    """
    store = Store.open(request.store)
    record = read_run(store, request.run)
    recipe = record.typed_recipe()
    last = request.until or iterations_done(store, record.layout, requested_at()) + (request.more or 0)
    profile = fitting_profile(request.profile, request.profile_overrides, trains=True)
    refuse_undivided(recipe, profile.trainer, profile.engine)
    with opened_run(store, record.layout, recipe, profile, request.refresh, last=last) as session:
        puzzles, position = begin(session)
        run_iterations(session, puzzles, position, last)
        return session.write_report()


def iterations_done(store: Store, layout: RunLayout, before: datetime) -> int:
    """Returns the last iteration whose decision was made before a time.

    Given the time of the request, a retry ends at the same iteration as the first attempt. Decisions that a refresh has
    replaced count too.

    Raises:
        BadInputError: The run had no decision before that time, or the newest was made in the future.
    """
    decisions: dict[int, list[str]] = {}
    for key in store.list(layout.iterations):
        attempt = IN_ATTEMPT.fullmatch(key)
        replaced = attempt[1] if attempt and attempt[3] == REFRESHED_NAME else None
        part = layout.part_of(artifact_of(key) or replaced or "")
        if part is not None and part[1] == PARTS["promote"]:
            decisions.setdefault(part[0], []).append(key)
    for number, keys in sorted(decisions.items(), reverse=True):
        for key in keys:
            manifest = Manifest.from_bytes(store.read_bytes(key), f"{store.url}/{key}")
            manifest.refuse_future(key)
            if manifest.made_at < before:
                return number
    raise BadInputError(f"run {layout.run!r}", "no decision yet", "at least one", "call `deerstalker train` first")
