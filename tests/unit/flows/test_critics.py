"""The optimizer state with which a critic of another run goes on."""

from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout, manifest_key
from artifacts.manifest import Pruned
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Critic, OptimizerState, Ref, Values
from artifacts.store.store import Store
from flows.inputs.critics import first_critic
from stages.training.critic import ValueConfig
from stages.training.launch import Weights
from stages.training.saved_state import STATE_FOLLOWS
from tests.support.sessions import made_session

LAYOUT, OTHER = RunLayout("mine"), RunLayout("other")
SETTINGS = ["grade.advantage={baseline = 'none', scale = 'none'}", "value.source=other@1"]
POLICY = Identity.of("fetch", 1, {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


def published(store: Store, key: str, kind: type[Any], identity: Identity, **inputs: Ref[Any]) -> Ref[Any]:
    attempt = ArtifactAddress(store, key, kind).attempt(identity)
    attempt.write_bytes("file", key.encode())
    return attempt.publish({STATE_FOLLOWS: True}, **inputs)


def critic_of_other(store: Store) -> tuple[Ref[Any], Ref[OptimizerState]]:
    made = Identity.of("value", 1, ValueConfig(learning_rate=0.01).model_dump(mode="json"))
    critic = published(store, OTHER.iteration(1, "critic"), Critic, made)
    return critic, published(store, OTHER.iteration(1, "critic_state"), OptimizerState, made, checkpoint=critic)


def test_a_state_that_cannot_be_used_is_left_out(store: Store, tmp_path: Path) -> None:
    policy = published(store, "models/start", Checkpoint, POLICY)
    critic, state = critic_of_other(store)

    def first(*more: str) -> Weights | None:
        return first_critic(made_session(store, tmp_path, LAYOUT, [*SETTINGS, *more]), policy)

    assert first() == Weights(critic, state)
    assert first("value.trainable.parameters=attention") == Weights(critic, state), "all have the moments of some"
    assert first("value.trainable.parameters=lora") == Weights(critic), "no state has those of an adapter"
    manifest = Artifact.open(store, state).manifest
    pruned = manifest.model_copy(update={"pruned": Pruned(at="2026-11-28", rule="keep_state_every")})
    store.write_bytes(manifest_key(state.key), pruned.to_bytes())
    assert first() == Weights(critic)
    begun = Identity.of("value", 1, {})
    published(store, LAYOUT.iteration(1, "values"), Values, begun, critic=critic, critic_state=state)
    assert first() == Weights(critic, state), "a run that began with it keeps its identities"
