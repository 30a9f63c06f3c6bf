"""Files of models: what they may say, prices, and the published costs from the published token counts."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.config.models_file import ApiModel, CheckpointModel, check_purchase, load_models
from stages.answering.prices import HourPrice, TokenPrice, Tokens, cached_tokens, dollars
from stages.answering.settings import ApiRequest, Parameters

TODAY = datetime.date(2025, 6, 1)
NOTEBOOK = {
    "DeepSeek R1": 0.029131,
    "o3-mini": 0.067929,
    "o3-mini high": 0.170041,
    "o1": 0.900762,
    "Sonnet 3.7": 0.016644,
    "Sonnet 3.7, 16k": 0.221751,
    "Sonnet 3.7, 64k": 0.392469,
}
"""Dollars an answer, as the notebook of the comparison prints them."""


def api_models() -> dict[str, ApiModel]:
    return {model.name: model for model in load_models("temporal_clue_2025") if isinstance(model, ApiModel)}


def price(**changes: Any) -> TokenPrice:
    return TokenPrice(**{"input": 1.0, "output": 2.0, "source": "here", "date": TODAY, **changes})


def test_published_token_counts_give_the_published_costs() -> None:
    models = api_models()
    assert len(models) == 9
    costs = {name: one.price.cost(one.expected.tokens()) for name, one in models.items() if one.price and one.expected}
    distilled = price(input=0.7, output=1.4).cost(Tokens(1108.28, 9855.22))  # in the notebook only
    counted_to = 0.005  # half of the last digit of the published token counts
    for name, published in NOTEBOOK.items():
        rounding = (models[name].price or price()).cost(Tokens(counted_to, counted_to))
        assert costs[name] == pytest.approx(published, abs=0.5e-6 + rounding), name
    assert distilled == pytest.approx(0.014573, abs=0.5e-6)
    assert costs["Qwen2.5 14B Instruct"] == pytest.approx(0.0004194, abs=1e-9)
    assert costs["Qwen2.5 32B Instruct"] == pytest.approx(0.00189, abs=1e-9)


def test_cached_tokens_have_their_own_price_and_hours_are_shared_by_speed() -> None:
    assert price(cached_input=0.1).cost(Tokens(1000, 100, cached=400)) == pytest.approx((600 + 40 + 200) / 1e6)
    assert price().cost(Tokens(1000, 100, cached=400)) == pytest.approx(1200 / 1e6)
    assert cached_tokens({"prompt_tokens_details": {"cached_tokens": 7}}) == 7
    assert cached_tokens({"prompt_tokens_details": None}) == cached_tokens({}) == 0
    hour = HourPrice(per_hour=0.36, devices=2, source="here", date=TODAY)
    assert hour.cost(Tokens(500, 100), tokens_per_s=50.0) == pytest.approx(0.36 * 2 / 3600 * 2)


def test_only_what_is_sent_is_part_of_the_identity() -> None:
    plain = ApiRequest(model="m", base_url="https://example.org/v1/")
    assert plain.identity() == {"base_url": "https://example.org/v1", "model": "m"}
    parameters = Parameters(
        max_tokens=9, reasoning_tokens=5, seed=3, extra_body={"reasoning": {"exclude": False}, "top_k": 1}
    )
    assert parameters.body(2) == {
        "max_tokens": 9, "seed": 5, "reasoning": {"max_tokens": 5, "exclude": False}, "top_k": 1,
    }  # fmt: skip
    model = api_models()["o1"]
    assert model.asked().identity() == {"base_url": "https://openrouter.ai/api/v1", "model": "openai/o1"}


GOOD = {"name": '"a"', "kind": '"openai"', "model": '"m"'}


def write(folder: Path, *models: dict[str, str]) -> str:
    file = folder / "models.toml"
    file.write_text("\n".join("[[models]]\n" + "\n".join(f"{k} = {v}" for k, v in model.items()) for model in models))
    return str(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": '"opena"'}, "models.0: .*did you mean 'openai'"),
        ({"temperature": "1.0"}, "models.0.temperature: Extra inputs"),
        ({"base_url": '"https://me:secret@example.org"'}, "base_url"),
        ({"parameters": "{ extra_body = { n = 3 } }"}, "n: set by the benchmark itself"),
        ({"parameters": "{ max_tokens = 1, max_completion_tokens = 1 }"}, "one limit by two names"),
        ({"price": "{ input = 1, output = 2 }"}, "price.source: Field required.*price.date: Field required"),
        ({"name": '"x\\ny"'}, "name: String should match"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        load_models(write(tmp_path, {**GOOD, **change}))


@pytest.mark.parametrize(
    "change", [{"api_key": '"sk-0123"'}, {"api_key_env": '"sk-0123"'}, {"headers": '{ x = "sk-0123" }'}]
)
def test_a_key_in_a_file_is_refused_and_not_repeated(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match="not shown") as told:
        load_models(write(tmp_path, {**GOOD, **change}))
    assert "sk-0123" not in str(told.value)


def test_names_are_unique_and_chosen_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="two models have the name 'a'"):
        load_models(write(tmp_path, GOOD, {**GOOD, "name": '"A"'}))
    checkpoint = {"name": '"mine"', "kind": '"checkpoint"', "checkpoint": '"quickstart"'}
    file = write(tmp_path, GOOD, checkpoint)
    (chosen,) = load_models(file, ["mine"])
    assert isinstance(chosen, CheckpointModel)
    with pytest.raises(BadInputError, match="--only mini: unknown, did you mean 'mine'"):
        load_models(file, ["mini"])
    with pytest.raises(BadInputError, match=r"models\.0\.parameters\.temperature: 0\.001; expected 0, or from 0\.01"):
        load_models(write(tmp_path, {**checkpoint, "parameters": "{ temperature = 0.001 }"}))
    with pytest.raises(BadInputError, match="--samples sets it"):
        load_models(write(tmp_path, {**checkpoint, "parameters": "{ samples_per_prompt = 2 }"}))


def test_a_purchase_needs_a_bound_and_a_price_of_this_year() -> None:
    model = ApiModel(name="a", kind="openai", model="m", parameters=Parameters(max_tokens=5), price=price())
    check_purchase(model, max_cost=1.0, today=TODAY, old_prices=False)
    for changes, words in (
        ({"price": None}, "no price, so the cost"),
        ({"parameters": Parameters()}, "no parameters.max_tokens, so the cost"),
        ({"price": price(date=datetime.date(2024, 5, 1))}, "a price of 2024-05-01"),
        ({"price": price(date=datetime.date(2027, 1, 1))}, "a price of 2027-01-01"),
    ):
        with pytest.raises(BadInputError, match=words):
            check_purchase(model.model_copy(update=changes), max_cost=1.0, today=TODAY, old_prices=False)
    check_purchase(model.model_copy(update={"price": None}), max_cost=None, today=TODAY, old_prices=False)
    old = model.model_copy(update={"price": price(date=datetime.date(2024, 5, 1))})
    check_purchase(old, max_cost=1.0, today=TODAY, old_prices=True)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "$0.0000"), (5.0, "$5.0000"), (0.0123456, "$0.0123"), (0.00012, "$0.00012"), (6.54e-6, "$0.0000065")],
)
def test_small_amounts_keep_two_digits(amount: float, text: str) -> None:
    assert dollars(amount) == text
