"""One flow run is one user of the GPU, however many engines it keeps side by side."""

from flows.gpu_turn import gpu_turn


def test_stages_opened_side_by_side_share_a_turn() -> None:
    with gpu_turn("gpu", "run") as first:
        with gpu_turn("gpu", "run") as second, gpu_turn("other", "run") as other:
            assert second is first is not other
        with gpu_turn("gpu", "run") as third:
            assert third is first
    with gpu_turn("gpu", "run") as later:
        assert later is not first
