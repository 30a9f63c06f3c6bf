"""The alarm of a run as a Prefect event, and an automation that cancels the run when its alarm begins."""

from dataclasses import asdict
from datetime import timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import emit_event
from prefect.events.actions import CancelFlowRun
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from flows.orchestration.artifact_keys import slug
from flows.orchestration.flow_runs import this_flow_run
from stages.promotion.reward_alarm import AlarmWindow

EVENT = "deerstalker.run.reward-alarm"
"""Name of the event; its payload has the fields of `stages.promotion.reward_alarm.AlarmWindow`."""
AUTOMATION = "deerstalker: stop runs whose reward rises while held-out accuracy falls"


def emit_reward_alarm(run: str, alarm: AlarmWindow) -> None:
    """Emits the alarm of a run as an event that is related to the current flow run; call it in a flow only."""
    emit_event(
        EVENT,
        resource={"prefect.resource.id": f"deerstalker.run.{slug(run)}", "prefect.resource.name": run},
        related=[
            {"prefect.resource.id": f"prefect.flow-run.{this_flow_run().id}", "prefect.resource.role": "flow-run"}
        ],
        payload={"message": str(alarm), **asdict(alarm)},
    )


def make_alarm_automation(client: SyncPrefectClient) -> None:
    """Creates a disabled automation that cancels a flow run when its alarm begins; an existing one stays as it is."""
    if client.read_automations_by_name(AUTOMATION):
        return
    client.create_automation(
        AutomationCore(
            name=AUTOMATION,
            description="Installed by `deerstalker up`, disabled. Enable it to cancel a run when its alarm begins.",
            enabled=False,
            trigger=EventTrigger(
                expect={EVENT},
                for_each={"prefect.resource.id"},
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(0),
            ),
            actions=[CancelFlowRun()],
        )
    )
