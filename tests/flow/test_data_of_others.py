"""Runs on data of other trainers: their layouts, the hub with a token, and the recipe beside a script of TRL."""

from pathlib import Path

import pytest

from artifacts.documents.conversation import messages_of
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.schemas import GRADES, GRADES_FILE, PUZZLES
from artifacts.store.store import Store
from tests.support.hub_server import TOKEN, Hub, hub_server
from tests.support.installed import ONE_ENGINE, Installation
from tests.support.layouts import LAYOUTS, blocks, recipe_of, write_layout
from tests.support.secrets import holders_of

PAGE = "A script of TRL, and its recipe"


@pytest.mark.release
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_on_the_layout_of_another_trainer(layout: str, tmp_path: Path, prefect_api_url: str) -> None:
    write_layout(layout, tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe_of(layout))
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    place.deerstalker(
        "train", "--recipe", "recipe.toml", "--run", "mine",
        "--store", str(place.store), "--profile", str(ONE_ENGINE), "--json",
    )  # fmt: skip
    store = Store.open(str(place.store))
    grades = Artifact.at(store, "runs/mine/iterations/0001/grades").read_table(GRADES_FILE, GRADES)
    assert len(grades) == 16
    (folder,) = place.store.glob("puzzles/set-*")
    train = Artifact.at(store, f"puzzles/{folder.name}").read_table("train.parquet", PUZZLES)
    assert len(messages_of(train["prompt"][0])) == (1 if layout == "open_r1" else 2)


@pytest.mark.release
def test_a_run_on_a_private_data_set_of_the_hub_goes_on_without_it(tmp_path: Path, prefect_api_url: str) -> None:
    write_layout("verl", tmp_path)
    data = (tmp_path / "verl.parquet").read_bytes()
    (tmp_path / "verl.parquet").unlink()
    recipe = recipe_of("verl").replace(
        '"verl.parquet"', '"hub:we/sums"\npuzzle.config = "main"\npuzzle.split = "train"'
    )
    (tmp_path / "recipe.toml").write_text(recipe)
    hub = Hub({"we/sums": {"refs/convert/parquet": {"main/train/0000.parquet": data}}}, private=frozenset({"we/sums"}))
    with hub_server(hub):
        known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PREFECT_API_URL": prefect_api_url}
        place = Installation(tmp_path, **known, HF_TOKEN=TOKEN)
        options = ("--store", str(place.store), "--profile", str(ONE_ENGINE), "--json")
        stranger = Installation(tmp_path, **known)
        refused = stranger.attempt("deerstalker", "train", "--recipe", "recipe.toml", "--run", "mine", *options)
        assert refused.returncode != 0 and "hub:we/sums: no such data set, or no access to it" in refused.stderr
        place.deerstalker("train", "--recipe", "recipe.toml", "--run", "mine", *options)
    assert holders_of([TOKEN], [place.store]) == []
    (folder,) = place.store.glob("puzzles/set-*")
    identity = Manifest.from_bytes((folder / "manifest.json").read_bytes(), "set").identity
    assert identity.config["commit"] == hub.commit("we/sums", "refs/convert/parquet")
    place.deerstalker("iterate", "mine", "--more", "1", *options)  # the hub has gone
    assert place.part("mine", 2, "report").is_dir()


@pytest.mark.release
def test_the_recipe_beside_the_script_of_trl_runs(tmp_path: Path, prefect_api_url: str) -> None:
    write_layout("trl", tmp_path)
    (tmp_path / "recipe.toml").write_text(blocks("toml", PAGE)[0])
    script, rewards = blocks("python", PAGE)
    compile(script, "train.py", "exec")
    (tmp_path / "rewards.py").write_text(rewards)
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    place.deerstalker(
        "train", "--recipe", "recipe.toml", "--run", "sums", "--set", "evaluate.puzzles=4", "--set", "final.puzzles=4",
        "--set", "iterations=2", "--store", str(place.store), "--json",
    )  # fmt: skip
    store = Store.open(str(place.store))
    for number in (1, 2):
        grades = Artifact.at(store, f"runs/sums/iterations/{number:04d}/grades").read_table(GRADES_FILE, GRADES)
        assert len(grades) == 32
        short = grades["reward"] - grades["accuracy"]
        assert short.is_between(-1.0, 0.0).all() and short.n_unique() > 1
