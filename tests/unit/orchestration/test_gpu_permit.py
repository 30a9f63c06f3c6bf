"""One flow run is one user of the GPU, however many engines it keeps side by side."""

import logging

from flows.orchestration.gpu_permit import gpu_permit

LOG = logging.getLogger(__name__)


def test_stages_opened_side_by_side_share_a_turn() -> None:
    with gpu_permit("gpu", "run", LOG) as first:
        with gpu_permit("gpu", "run", LOG) as second, gpu_permit("other", "run", LOG) as other:
            assert second is first is not other
        with gpu_permit("gpu", "run", LOG) as third:
            assert third is first
    with gpu_permit("gpu", "run", LOG) as later:
        assert later is not first
