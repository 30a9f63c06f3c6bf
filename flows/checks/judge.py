"""Checks the judge of a recipe before a run stores anything."""

import asyncio

from flows.config.recipe import Recipe
from stages.grading.judge import WHERE, JudgeConfig


def check_judge(recipe: Recipe) -> None:
    """Asks the server of each judge, at no cost, whether it accepts the key and has the model.

    Raises:
        BadInputError: It does not, or it cannot be reached.
    """
    judges: list[JudgeConfig] = []
    for part in recipe.parts:
        if (judge := part.grade.reward.judge) is not None and judge not in judges:
            judges.append(judge)
            asyncio.run(_check(judge))


async def _check(judge: JudgeConfig) -> None:
    from stages.answering.client import ApiClient  # slow to load, and few recipes have a judge

    async with ApiClient(judge.asked, judge, WHERE) as client:
        await client.check()
