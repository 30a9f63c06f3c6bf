"""Puzzle sets and files of models for tests of benchmarks, and a process that asks models and may be killed.

Run as a script (`python -m tests.support.api_side STORE MODELS PUZZLES SAMPLES`) it asks every model of a file, one
after the other, as the flow does but without Prefect, and prints each model's figures as a line of JSON.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Answers, Puzzles, Ref
from artifacts.schemas import ANSWERS, PUZZLES
from artifacts.store.store import Store
from flows.config.models_file import ApiModel, load_models
from stages.answer import ANSWERS_FILE, AnswerConfig, answer, identity_of
from stages.answering.limits import Budget
from stages.answering.measured import BenchmarkedModel, measured
from stages.answering.purchase import Service
from stages.answering.stored import answers_key
from stages.context import StageContext
from stages.environments.puzzle import Puzzle
from stages.environments.tables import read_split, to_table
from tests.support.contexts import make_context

KEY_VARIABLE = "TEST_API_KEY"


def question(prompt: str, right: str) -> Puzzle:
    """Returns a question whose only right answer is this text."""
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return Puzzle(digest[:12], "file:exact", prompt, {"answer": right}, 0, None, digest, {})


def publish(store: Store, puzzles: list[Puzzle]) -> Ref[Puzzles]:
    """Publishes puzzles as the test split of a set."""
    identity = Identity.of("prepare", 1, {"made": [puzzle.digest for puzzle in puzzles]})
    attempt = ArtifactAddress(store, shared_key(Shared.PUZZLES, "set", identity), Puzzles).attempt(identity)
    attempt.write_table("test.parquet", to_table(puzzles), PUZZLES)
    return attempt.publish()


def write_models(file: Path, base_url: str, models: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes a file of models at one address; `models` holds, by name, the settings that differ from the usual ones."""
    usual = {
        "kind": "openai",
        "model": "policy",
        "base_url": base_url,
        "api_key_env": KEY_VARIABLE,
        "retry_delay_s": 0.01,
        "timeout_s": 60.0,
    }
    tables = [{"name": name, **({} if "kind" in changes else usual), **changes} for name, changes in models.items()]
    lines = [
        "\n".join(["[[models]]", *(f"{key} = {_toml(value)}" for key, value in table.items())]) for table in tables
    ]
    file.write_text("\n\n".join(lines) + "\n")
    return file


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def ask(
    ctx: StageContext, model: ApiModel, puzzles: Ref[Puzzles], samples: int = 1, *, count: int = 1000, **service: Any
) -> BenchmarkedModel:
    """Asks a model the test split and returns its figures."""
    config = AnswerConfig(puzzles=count, samples=samples, asked=model.asked())
    out = ArtifactAddress(ctx.store, answers_key("model", identity_of(config, puzzles, None, "test")), Answers)
    served = Service(model.name, model, model.price, service.get("budget", Budget()))
    answers = answer(ctx, config, puzzles, split="test", service=served, out=out)
    return measured(
        Artifact.open(ctx.store, answers).read_table(ANSWERS_FILE, ANSWERS),
        read_split(ctx.store, puzzles, "test").head(count),
        name=model.name,
        kind=model.kind,
        model=model.model,
        key=answers.key,
        price=model.price,
        tokens_per_s=None,
    )


def main(store_url: str, file: str, key: str, samples: str) -> None:
    """Asks every model of a file."""
    store = Store.open(store_url)
    with tempfile.TemporaryDirectory() as scratch, make_context(store, Path(scratch)) as ctx:
        for model in load_models(file):
            assert isinstance(model, ApiModel)
            figures = ask(ctx, model, Artifact.at(store, key, Puzzles).ref, int(samples))
            print(json.dumps(figures.as_json()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
