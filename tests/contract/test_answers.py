"""Models behind APIs: vLLM's own route with a small checkpoint, and a proxy before it that fails as providers do."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.errors import BadInputError, TransientError
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import ANSWERS
from artifacts.store.store import Store
from flows.config.models_file import ApiModel, load_models
from stages.answer import ANSWERS_FILE
from stages.answering.client import ApiClient
from stages.answering.limits import Budget, BudgetReachedError
from stages.context import StageContext
from stages.environments.puzzle import Puzzle
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import find_chat_template
from stages.sampling.config import EngineHardware
from stages.sampling.endpoint import Endpoint
from stages.sampling.engine import Engine
from tests.support.api_side import KEY_VARIABLE, ask, publish, question, write_models
from tests.support.contexts import make_context
from tests.support.engine_facts import facts
from tests.support.engines import TEXTS
from tests.support.fault_proxy import API_FAULTS, FaultProxy, at_random, fault_proxy
from tests.support.installed import ONE_ENGINE, Installation
from tests.support.json_page import check_documented
from tests.support.secrets import holders_of
from tests.support.serving import http_server

GREEDY = {"temperature": 0.0, "max_tokens": 6}
PRICE = {"input": 1.0, "output": 10.0, "source": "this test", "date": time.strftime("%Y-%m-%d")}
COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True)
class Api:
    """The engine's route as a provider's.

    Attributes:
        endpoint: Where it listens, on a Unix socket.
        model: Folder of its model.
        puzzles: Questions of which it answers every second one right, greedy.
    """

    endpoint: Endpoint
    model: Path
    puzzles: list[Puzzle]

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        assert isinstance(self.endpoint.address, Path)
        return self.endpoint.address


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    folder = tmp_path_factory.mktemp("model")
    make_scratch(ScratchModel(layers=2, vocabulary=300, init_std=0.3), TEXTS, folder)
    # The template of the model, so that the route writes the prompts that our own engine's client writes.
    (folder.parent / "template.jinja").write_text(find_chat_template(folder) or "")
    template = ("--chat-template", str(folder.parent / "template.jinja"))
    hardware = EngineHardware(
        max_num_seqs=16, kv_cache_gib=0.1, max_model_len=512, threads=1, replicas=1, dtype="float32",
        extra_arguments=template,
    )  # fmt: skip
    with Engine(hardware, tmp_path_factory.mktemp("engine")) as engine, pytest.MonkeyPatch.context() as patch:
        engine.ensure(folder, "digest")
        endpoint = facts(engine).sources[0].endpoint
        patch.setenv(KEY_VARIABLE, endpoint.api_key)
        yield Api(endpoint, folder, questions(endpoint, "Who was it? {}", 24))


def questions(endpoint: Endpoint, form: str, count: int) -> list[Puzzle]:
    """Questions of which the model answers every second one right, greedy."""
    prompts = [form.format(number) for number in range(count)]
    texts = [greedy_text(endpoint, prompt) for prompt in prompts]
    right = [text if number % 2 else f"{text} or not" for number, text in enumerate(texts)]
    return [question(*pair) for pair in zip(prompts, right, strict=True)]


def greedy_text(endpoint: Endpoint, prompt: str) -> str:
    body = {"model": "policy", "messages": [{"role": "user", "content": prompt}], **GREEDY}
    answer = endpoint.call("POST", COMPLETIONS, body, timeout_s=60.0)
    return " ".join(answer["choices"][0]["message"]["content"].split())


@dataclass
class Place:
    """A store with puzzles, and the way to a provider."""

    store: Store
    ctx: StageContext
    puzzles: Ref[Puzzles]
    proxy: FaultProxy
    folder: Path

    def model(self, **changes: Any) -> ApiModel:
        file = write_models(
            self.folder / "models.toml", f"{self.proxy.url}/v1", {"small": {"parameters": GREEDY} | changes}
        )
        (model,) = load_models(str(file))
        assert isinstance(model, ApiModel)
        return model

    def ids(self) -> list[str]:
        """Ids of the completions that reached the client, in order."""
        bodies = [json.loads(answer) for _, answer in self.proxy.delivered]
        return [body["id"] for body in bodies if "choices" in body]

    def answers(self, key: str) -> pl.DataFrame:
        return Artifact.at(self.store, key).read_table(ANSWERS_FILE, ANSWERS)


@pytest.fixture
def place(api: Api, tmp_path: Path) -> Generator[Place]:
    store = Store.open(str(tmp_path / "store"))
    with fault_proxy(api.socket, lambda *_: None) as proxy, make_context(store, tmp_path / "scratch") as ctx:
        yield Place(store, ctx, publish(store, api.puzzles), proxy, tmp_path)


def test_answers_of_the_route_are_stored_whole_graded_and_never_bought_again(place: Place) -> None:
    figures = ask(place.ctx, place.model(price=PRICE), place.puzzles)
    assert (figures.accuracy.mean, figures.puzzles, figures.samples) == (0.5, 24, 1)
    assert figures.accuracy.low < 0.5 < figures.accuracy.high
    assert sum(figures.outcomes.values()) == 24
    table = place.answers(figures.answers)
    usage = [json.loads(text) for text in table["usage"]]
    assert [item["completion_tokens"] for item in usage] == table["completion_tokens"].to_list()
    total = sum(item["prompt_tokens"] * 1.0 + item["completion_tokens"] * 10.0 for item in usage)
    assert figures.cost_per_answer == pytest.approx(total / 1e6 / 24)
    assert set(table["model"]) == {"policy"} and set(table["attempts"]) == {1}
    assert sorted(table["response_id"]) == sorted(place.ids()) and len(place.ids()) == 24

    dearer = ask(place.ctx, place.model(price=PRICE | {"output": 20.0}), place.puzzles)
    assert dearer.answers == figures.answers and (dearer.cost_per_answer or 0) > (figures.cost_per_answer or 0)
    assert len(place.ids()) == 24, "a price is no part of the identity"
    three = ask(place.ctx, place.model(), place.puzzles, samples=3)
    assert (three.samples, len(place.ids())) == (3, 72), "the first samples are those that were stored"
    few = ask(place.ctx, place.model(), publish(place.store, [question("Who was it? 1", "x")]))
    assert (few.puzzles, len(place.ids())) == (1, 72), "another set with a puzzle that was answered"


@pytest.mark.long
def test_faults_of_a_provider_are_tried_again_and_answers_broken_off_count(place: Place) -> None:
    quiet = ask(place.ctx, place.model(), place.puzzles)
    again = Place(Store.open(str(place.folder / "other")), place.ctx, place.puzzles, place.proxy, place.folder)
    with make_context(again.store, place.folder / "other-scratch") as ctx:
        puzzles = publish(again.store, [question(f"Who was it? {number}", "?") for number in range(24)])
        once = iter(["stalled"])  # it takes the whole time limit, within which a busy engine answers
        at_times = at_random(0.5, seed=4, faults=[fault for fault in API_FAULTS if fault != "stalled"])
        place.proxy.choose = lambda method, path: next(once, None) or at_times(method, path)
        place.proxy.stall_s = 15.0
        model = again.model(retries=30, timeout_s=12.0)
        figures = ask(ctx, model, puzzles)
    place.proxy.choose = lambda *_: None
    assert set(place.proxy.injected) == set(API_FAULTS)
    table = again.answers(figures.answers)
    broken = place.proxy.injected["broken_off"]
    assert figures.outcomes["error"] == broken > 0 and len(table) == 24
    assert table["attempts"].sum() - 24 >= sum(place.proxy.injected.values()) - broken
    assert set(table.filter(pl.col("outcome") == "error")["finish_reason"]) == {"error"}
    # The other answers are those of the run without faults: greedy, whatever was asked beside them.
    undisturbed = dict(place.answers(quiet.answers).select("prompt_id", "text").iter_rows())
    whole = table.filter(pl.col("outcome") != "error")
    assert {row[0]: row[1] for row in whole.select("prompt_id", "text").iter_rows()}.items() <= undisturbed.items()


def test_a_question_without_a_reply_ends_the_work_or_counts(place: Place) -> None:
    place.proxy.choose = lambda method, _: "internal_error" if method == "POST" else None
    with pytest.raises(TransientError, match=r"questions in a row had no reply .*2 attempts; the last: HTTP 500"):
        ask(place.ctx, place.model(retries=1, concurrency=2), place.puzzles)
    counted = place.model(retries=0, failed_calls="count")
    figures = ask(place.ctx, counted, place.puzzles, count=3)
    assert (figures.outcomes, figures.accuracy.mean, figures.without_usage) == ({"failed": 3}, 0.0, 3)


def test_a_budget_stops_before_it_is_passed_and_the_same_command_goes_on(place: Place) -> None:
    most = (len("Who was it? 10") + 64) * 1e-6 + 6 * 1e-5
    budget = Budget(limit=6.5 * most)
    with pytest.raises(BudgetReachedError, match=r"of \$0\.00090 is spent; \d+ of 24 missing answers were bought"):
        ask(place.ctx, place.model(price=PRICE), place.puzzles, budget=budget)
    bought = len(place.ids())
    assert 6 <= bought < 24 and budget.spent <= (budget.limit or 0) and budget.reserved == pytest.approx(0.0)
    ask(place.ctx, place.model(price=PRICE), place.puzzles, budget=Budget(limit=1.0))
    assert len(place.ids()) == 24


def test_an_address_is_checked_before_anything_is_bought(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def checked(**changes: Any) -> None:
        model = place.model(**changes)
        async with ApiClient(model.asked(), model, "model 'small'") as client:
            await client.check()

    asyncio.run(checked())
    for changes, words in (
        ({"model": "polcy"}, "has no model 'polcy', did you mean 'policy'"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "cannot be reached"),
        ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
    ):
        with pytest.raises(BadInputError, match=words):
            asyncio.run(checked(**changes))
    with (
        http_server(SimpleHTTPRequestHandler) as pages,
        pytest.raises(BadInputError, match=r"is not an API: GET /models answers HTTP 404, not in JSON"),
    ):
        asyncio.run(checked(base_url=pages))
    with pytest.raises(BadInputError, match="HTTP 404"):
        ask(place.ctx, place.model(base_url=f"{place.proxy.url}/elsewhere"), place.puzzles)
    monkeypatch.setenv("WRONG_KEY", "sk-wrong-0123456789")
    with pytest.raises(BadInputError, match=r"HTTP 401: it refuses the key of .* WRONG_KEY") as told:
        asyncio.run(checked(api_key_env="WRONG_KEY"))
    assert "sk-wrong" not in str(told.value)
    assert place.ids() == []


def test_refused_parameters_end_the_work_in_the_providers_words(place: Place) -> None:
    for parameters, words in (({"temperature": 9.5}, "temperature"), ({"extra_body": {"top_k": -7}}, "top_k")):
        with pytest.raises(BadInputError, match=f"model 'small'.*refuses the request: HTTP 400: .*{words}"):
            ask(place.ctx, place.model(parameters={**GREEDY, **parameters}), place.puzzles)
    assert place.ids() == []


def test_a_prompt_that_is_refused_later_counts(place: Place) -> None:
    puzzles = publish(place.store, [question("Who?", "x"), question("Who was it? " * 200, "x")])
    figures = ask(place.ctx, place.model(price=PRICE), puzzles)
    assert figures.outcomes["rejected"] == 1 and sum(figures.outcomes.values()) == 2
    (row,) = place.answers(figures.answers).filter(pl.col("outcome") == "rejected").to_dicts()
    assert "context length" in row["detail"] and row["completion_tokens"] == 0


@pytest.mark.release
def test_kills_buy_no_stored_answer_again_and_change_no_figure(api: Api, tmp_path: Path) -> None:
    """Ten kills during 3 models x 200 puzzles: every answer that was stored is used, and each question has one."""
    chance = random.Random(24)
    models = {name: {"parameters": {**GREEDY, "max_tokens": most}} for name, most in (("a", 2), ("b", 4), ("c", 6))}
    puzzles = questions(api.endpoint, "Who was it in room {}?", 200)
    with fault_proxy(api.socket, at_random(0.05, 1, ("too_many", "internal_error", "delayed"))) as proxy:
        file = write_models(
            tmp_path / "models.toml", f"{proxy.url}/v1", {n: {"concurrency": 4} | m for n, m in models.items()}
        )
        figures: dict[str, list[dict[str, Any]]] = {}
        kills = 0
        for name in ("quiet", "killed"):
            store = Store.open(str(tmp_path / name))
            key = publish(store, puzzles).key
            proxy.delivered.clear()
            command = [sys.executable, "-m", "tests.support.api_side", store.url, str(file), key, "1"]
            while True:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
                if name == "killed" and kills < 10:
                    moment = len(proxy.delivered) + chance.randrange(5, 60)
                    while process.poll() is None and len(proxy.delivered) < moment:
                        time.sleep(0.01)
                    if process.poll() is None:
                        process.kill()
                        kills += 1
                        process.communicate()
                        continue
                output, _ = process.communicate(timeout=600)
                assert process.returncode == 0
                figures[name] = [json.loads(line) for line in output.splitlines()]
                break
        assert kills == 10
        assert [item["gradings"]["exact"]["letters"]["mean"] for item in figures["quiet"]][2] == 0.5
        assert [item["gradings"] for item in figures["killed"]] == [item["gradings"] for item in figures["quiet"]]
        store = Store.open(str(tmp_path / "killed"))
        tables = [Artifact.at(store, item["answers"]).read_table(ANSWERS_FILE, ANSWERS) for item in figures["killed"]]
        used = [response for table in tables for response in table["response_id"]]
        delivered = [json.loads(answer)["id"] for _, answer in proxy.delivered]
        assert len(used) == len(set(used)) == 600 and set(used) <= set(delivered)
        # A kill loses at most the replies that were on their way to the disk: no more than were under way.
        assert len(delivered) - 600 <= 4 * kills
        print(f"{kills} kills, {len(delivered)} completions, {len(delivered) - 600} lost on their way to the disk")


@pytest.fixture
def commands(api: Api, place: Place, prefect_api_url: str) -> Installation:
    """Commands on the store of a place that hold the key."""
    variables = {KEY_VARIABLE: os.environ[KEY_VARIABLE], "PREFECT_API_URL": prefect_api_url}
    return Installation(place.folder, **variables)


def command(place: Place, **models: dict[str, Any]) -> list[str]:
    changed = {
        name: change if "kind" in change else {"parameters": GREEDY, "price": PRICE} | change
        for name, change in models.items()
    }
    file = write_models(place.folder / "models.toml", f"{place.proxy.url}/v1", changed)
    # The compute type of the engine behind the API, so that both round alike.
    profile = place.folder / "profile.toml"
    profile.write_text(ONE_ENGINE.read_text().replace("[engine]", '[engine]\ndtype = "float32"'))
    at = ["--store", place.store.url, "--profile", str(profile)]
    return ["benchmark", "--models", str(file), "--puzzles", f"{place.puzzles.key}:test", "--count", "6", *at]


@pytest.mark.long
def test_the_command_refuses_in_one_line_and_prints_figures_without_its_key(
    place: Place, commands: Installation
) -> None:
    other = {"parameters": {**GREEDY, "temperature": 9.5}}
    refused = commands.attempt("deerstalker", *command(place, a={}, b=other))
    last = refused.stderr.splitlines()[-1]
    assert refused.returncode == 2 and refused.stdout == ""
    assert last.startswith("error: model 'b': it refuses the request: HTTP 400") and "temperature" in last
    assert len(place.ids()) == 1, "the first answer of the other model, which is kept"

    done = json.loads(commands.deerstalker(*command(place, a={}), "--max-cost", "1", "--json"))
    check_documented("benchmark", done, unmet={"refuted"})  # nothing can be proved
    (model,), (estimate,) = done["models"], done["estimates"]
    assert (model["name"], model["gradings"]["exact"]["letters"]["mean"], len(place.ids())) == ("a", 0.5, 6)
    assert (estimate["missing"], estimate["answers"], estimate["by"][:4]) == (5, 6, "mean")
    assert 0.0 < model["cost_per_answer"] * 6 < estimate["most"] * 6 / 5
    key = commands.environment[KEY_VARIABLE]
    assert holders_of([key], [place.folder]) == []
    assert key not in refused.stderr


@pytest.mark.release
def test_a_checkpoint_answers_directly_as_it_does_behind_its_api(
    api: Api, place: Place, commands: Installation
) -> None:
    price = {"per_hour": 0.05, "source": "this test", "date": PRICE["date"]}
    direct = {"kind": "checkpoint", "checkpoint": str(api.model), "parameters": GREEDY, "price": price}
    dry = commands.deerstalker(*command(place, api={}, direct=direct), "--dry-run")
    assert "missing answers" in dry and place.ids() == []
    done = json.loads(commands.deerstalker(*command(place, api={}, direct=direct), "--json"))
    both = {model["name"]: model for model in done["models"]}
    # This model writes random bytes. vLLM's route leaves out those at the end that are no whole character yet.
    whole = pl.col("text").str.strip_chars_end("\ufffd")
    columns = ("prompt_tokens", "completion_tokens", whole, "outcome")
    by_api, directly = (place.answers(both[name]["answers"]).select(columns).rows() for name in ("api", "direct"))
    assert by_api == directly
    for figure in ("outcomes", "completion_tokens", "prompt_tokens", "puzzles", "samples"):
        assert both["api"][figure] == both["direct"][figure], figure
    assert both["direct"]["cost_per_answer"] > 0
    del commands.environment[KEY_VARIABLE]
    table = commands.deerstalker(*command(place, api={}, direct=direct))
    assert table.count("50.0%") >= 2, "all is stored, so that no key is needed"
    missing = commands.attempt("deerstalker", *command(place, other={"model": "another"}))
    assert missing.returncode == 2
    assert f"the environment variable {KEY_VARIABLE} is not set" in missing.stderr.splitlines()[-1]
