"""The puzzles of an evaluation outside a run."""

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.refs import Puzzles
from artifacts.schemas import PUZZLES
from flows.inputs.suites import measured_puzzles
from flows.orchestration.gpu_permit import gpu_permit
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from stages.context import StageContext
from stages.environments.generate import TIERS, generate
from stages.environments.tables import to_table
from stages.evaluate import EvaluateConfig


def test_a_split_without_puzzles_is_refused(ctx: StageContext) -> None:
    attempt = ArtifactAddress(ctx.store, "puzzles/set-1", Puzzles).attempt(Identity.of("prepare", 1, {}))
    for split, puzzles in (("val", [generate(TIERS["reduced"], 0)]), ("test", [])):
        attempt.write_table(f"{split}.parquet", to_table(puzzles), PUZZLES)
    published = attempt.publish()
    with gpu_permit(None, "run", ctx.log) as permit:
        stages = Stages(ctx, current_view(), permit)
        assert measured_puzzles("puzzles/set-1:val", None, EvaluateConfig(), stages)[:2] == (published, "val")
        with pytest.raises(BadInputError, match="split 'test': no puzzles; expected at least one; name another split"):
            measured_puzzles("puzzles/set-1:test", None, EvaluateConfig(), stages)
        with pytest.raises(BadInputError, match="split 'train': not in the puzzle set"):
            measured_puzzles("puzzles/set-1:train", None, EvaluateConfig(), stages)
