"""What a flow run keeps in memory."""

from prefect.context import FlowRunContext

from flows.orchestration.flow_runs import forget_old_results


def test_only_the_newest_results_stay_linked_to_their_task_runs() -> None:
    """Prefect keeps a state of each task run until the flow run ends: a megabyte every forty iterations."""
    noted = dict.fromkeys(range(100))
    with FlowRunContext.model_construct(run_results=noted) as context:
        forget_old_results()
        assert list(context.run_results) == list(range(36, 100))
    forget_old_results()  # outside of a flow run there is nothing to forget
