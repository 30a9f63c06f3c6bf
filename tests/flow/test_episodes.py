"""The game of docs/episodes.md by its recipe, from random weights: its reward rises, and its observations are read."""

import json
from pathlib import Path

import polars as pl
import pytest

from artifacts.reading import Artifact
from artifacts.schemas import BY_TOOL, GRADES, GRADES_FILE, ROLLOUTS
from artifacts.store.store import Store
from stages.environments.solver_tool import read_episode
from tests.support.episodes import game, recipe
from tests.support.installed import Installation

PROFILE = """
workers = 1
allow_constant_reward = true  # the first completions of random weights may all be wrong
[engine]
replicas = 1
kv_cache_gib = 0.3
max_num_seqs = 256
[trainer]
threads = 1
"""
ITERATIONS = 12


@pytest.mark.release
def test_the_game_of_the_page_is_learned(tmp_path: Path, prefect_api_url: str) -> None:
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    for name, content in (("guess.py", game()), ("guess.toml", recipe()), ("profile.toml", PROFILE)):
        (tmp_path / name).write_text(content)
    store = ("--store", str(place.store), "--profile", str(tmp_path / "profile.toml"), "--json")
    train = ["train", "--recipe", str(tmp_path / "guess.toml"), "--run", "guess", "--set", f"iterations={ITERATIONS}"]
    place.deerstalker(*train, *store)
    opened = Store.open(str(place.store))

    def part(n: int, name: str) -> Artifact:
        return Artifact.at(opened, f"runs/guess/iterations/{n:04d}/{name}")

    grades = (part(n, "grades").read_table(GRADES_FILE, GRADES) for n in range(1, ITERATIONS + 1))
    rewards = [float(table["reward"].to_numpy().mean()) for table in grades]
    print("rewards", rewards)
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.05
    sampled = part(ITERATIONS, "rollouts").read_tables(ROLLOUTS)
    several = sampled.filter(pl.col(BY_TOOL).list.any())
    assert len(several) > 20, "episodes of several turns"
    assert all(set(read_episode(text)[1]) <= {"Higher", "Lower"} for text in several["text"])
    asked = ("solve", "--checkpoint", "guess", "guess:test", "--samples", "16", "--temperature", "1.0")
    episodes = json.loads(place.deerstalker(*asked, *store))["completions"]
    assert any(read_episode(item["text"])[1] for item in episodes), "an episode of several turns"
