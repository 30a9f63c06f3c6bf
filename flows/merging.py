"""The `merge` flow: merges checkpoints of a store into one."""

from typing import Any

from prefect import flow
from pydantic import Field

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.reading import Artifact
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.config.recipes import load_profile
from flows.inputs.models import merged
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, opened_stages
from stages.models.merging.config import MergedModel


class MergeRequest(Config):
    """Parameters of the `merge` flow."""

    model: MergedModel = Field(description="The models and the method, as in the section `model` of a recipe.")
    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])


class Merging(Document):
    """A merged checkpoint.

    Attributes:
        checkpoint: Ref of the checkpoint, as JSON.
        facts: Facts of the merge: the number of elements and their shares, and those of each tensor.
    """

    checkpoint: dict[str, Any]
    facts: dict[str, Any]


@flow(name="merge", flow_run_name="merge {request.model.models}", persist_result=False)
def merge_checkpoints(request: MergeRequest) -> Merging:
    """Merges checkpoints; models that were merged before in the same way are found in the store.

    Args:
        request: Models, method, store and profile.
    """
    store = Store.open(request.store)
    with opened_stages(store, load_profile(request.profile, request.profile_overrides)) as stages:
        stages.live.opened(f"merging {', '.join(request.model.models)} by {request.model.method}")
        checkpoint = merged(stages, request.model)
        return Merging(checkpoint=checkpoint.as_json(), facts=Artifact.open(store, checkpoint).manifest.facts)
