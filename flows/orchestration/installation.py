"""Installs on a Prefect server: a work pool, GPU slots, automations for dead runs and alarms, and the deployments.

Missing objects are created and existing ones are updated, so `install` may be called any number of times.
"""

from contextlib import suppress
from datetime import timedelta
from importlib.resources import files
from typing import Any

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.workers.process import ProcessWorker
from pydantic import Field

from artifacts.config import Config
from artifacts.errors import DeerstalkerError
from artifacts.store.location import STORE_VARIABLE
from flows.orchestration.gpu_lease import ensure_limit
from flows.orchestration.reward_alarm import make_alarm_automation
from flows.orchestration.server.backend import TAG

POOL = "deerstalker"
"""The default work pool. Names of deployments to other pools end in the pool's name."""

GPU_SLOTS = "gpu"
"""Name of the concurrency limit in profiles for GPUs."""

ZOMBIES = "deerstalker: crash runs whose process is gone"
NEVER_STARTED = "deerstalker: crash runs whose process never came"
IMAGE_FOLDER = "/opt/deerstalker"
_ZOMBIE_AFTER = timedelta(seconds=120)
_START_FACTOR = 3
_SIGNS_OF_LIFE = (
    "Scheduled", "AwaitingConcurrencySlot", "Pending", "Submitting", "Running", "heartbeat",
    "Completed", "Failed", "Cancelled", "Crashed",
)  # fmt: skip
"""Last parts of the names of the events that show that a flow run is alive or has ended."""


class Installation(Config):
    """Settings of an installation.

    Attributes:
        store: Default store of the deployments.
        folder: Working directory of flow runs, to which relative paths refer; `.` leaves it to the worker.
        image: Container image of flow runs, for pools that start containers.
        gpu_slots: Number of runs that may use a GPU at the same time; None keeps the current number.
        zombie_after_s: See `make_zombie_automations`; None keeps the current value.
    """

    store: str
    folder: str
    pool: str = POOL
    image: str | None = None
    gpu_slots: int | None = Field(default=None, ge=1, le=10_000)
    zombie_after_s: float | None = Field(default=None, ge=60.0, le=1e7)


def install(installation: Installation) -> list[str]:
    """Installs everything on the server of Prefect's current settings, and returns the names of the deployments.

    Raises:
        DeerstalkerError: The server refuses a deployment.
    """
    with get_client(sync_client=True) as client:
        make_pool(client, installation.pool)
        make_slots(client, installation.gpu_slots)
        make_zombie_automations(
            client, timedelta(seconds=installation.zombie_after_s) if installation.zombie_after_s else None
        )
        make_alarm_automation(client)
        return deploy(client, installation)


def make_pool(client: SyncPrefectClient, name: str) -> None:
    """Creates a process work pool; an existing pool of that name, of any type, stays as it is."""
    template = ProcessWorker.get_default_base_job_template()
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


def make_slots(client: SyncPrefectClient, slots: int | None) -> None:
    """Sets the number of GPU slots; None creates the limit with one slot if it is missing."""
    if slots is None:
        ensure_limit(client, GPU_SLOTS)
    else:
        client.upsert_global_concurrency_limit_by_name(GPU_SLOTS, slots)


def make_zombie_automations(client: SyncPrefectClient, within: timedelta | None) -> None:
    """Installs automations that mark runs without events as crashed; nothing else notices if worker and flow die.

    One automation watches running runs, whose heartbeats may stop, and `Pending` runs, whose worker may die right after
    it took them. The other watches `Submitting` runs, in process pools only: elsewhere a run may wait hours for its
    machine or image. It allows `_START_FACTOR` times as long until the first event.

    Args:
        within: Time without events after which a run counts as dead, several heartbeats long; None keeps the current
            value.
    """
    if within is None:
        existing = client.read_automations_by_name(ZOMBIES)
        trigger = existing[0].trigger if existing else None
        within = trigger.within if isinstance(trigger, EventTrigger) else _ZOMBIE_AFTER
    # Flows of others on the same server may send no heartbeats, or send them rarely.
    ours = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    process = {"prefect.resource.role": "work-pool", "prefect.work-pool.type": "process"}
    _install_crash_automation(client, ZOMBIES, {"Pending", "Running", "heartbeat"}, [ours], within)
    _install_crash_automation(client, NEVER_STARTED, {"Submitting"}, [ours, process], _START_FACTOR * within)


def _install_crash_automation(
    client: SyncPrefectClient, name: str, after: set[str], related: list[dict[str, str]], within: timedelta
) -> None:
    """Creates an automation that marks flow runs as crashed, or updates it if it differs.

    Args:
        after: Events that start the clock, as the last parts of their names. An event of `_SIGNS_OF_LIFE` stops it.
        related: A run must be related to each of these resources.
        within: Time without events after which a run is marked.
    """
    automation = AutomationCore(
        name=name,
        description="Installed by `deerstalker up`. A crashed run can be retried; a running one cannot.",
        trigger=EventTrigger(
            after={f"prefect.flow-run.{event}" for event in after},
            expect={f"prefect.flow-run.{event}" for event in _SIGNS_OF_LIFE},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=[ResourceSpecification(dict(item)) for item in related],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=within,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"No event for {within.total_seconds():.0f} s.",
                force=False,
            )
        ],
    )
    existing = client.read_automations_by_name(name)
    if not existing:
        client.create_automation(automation)
    elif existing[0].model_dump(exclude={"id"}) != automation.model_dump():
        client.update_automation(existing[0].id, automation)


def deploy(client: SyncPrefectClient, installation: Installation) -> list[str]:
    """Deploys `deployments/prefect.yaml` with the settings of the installation, and returns `flow/deployment` names.

    The result is that of `prefect deploy --all`, which takes 5 s to start.

    Raises:
        DeerstalkerError: The server refuses a deployment.
    """
    document = deployment_file(installation)
    names: list[str] = []
    for item in document["deployments"]:
        flow: Flow[..., Any] = import_object(item["entrypoint"])
        names.append(f"{flow.name}/{item['name']}")
        try:
            client.create_deployment(
                flow_id=client.create_flow_from_name(flow.name),
                name=item["name"],
                version=flow.version,
                parameters=item["parameters"],
                description=item["description"],
                tags=item["tags"],
                entrypoint=item["entrypoint"],
                work_pool_name=item["work_pool"]["name"],
                job_variables=item["work_pool"]["job_variables"],
                pull_steps=document["pull"],
                parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
                enforce_parameter_schema=True,
            )
        except PrefectHTTPStatusError as error:
            answer = f"HTTP {error.response.status_code}: {error.response.text[:1500]}"
            raise DeerstalkerError(
                f"deployment {names[-1]}", answer, "a server that accepts the deployment", "see its log"
            ) from error
    return names


def deployment_file(installation: Installation) -> dict[str, Any]:
    """Returns the packaged `prefect.yaml` with the settings of the installation filled in."""
    document: dict[str, Any] = yaml.safe_load(files("deployments").joinpath("prefect.yaml").read_text())
    for deployment in document["deployments"]:
        deployment["parameters"]["request"]["store"] = installation.store
        if installation.pool != POOL:
            deployment["name"] += f"-{installation.pool}"  # unique among the pools
        image = {"image": installation.image} if installation.image else {}
        given = deployment["work_pool"]["job_variables"]
        # A person's request replaces the one of the deployment, and with it the store.
        variables = {**given, "env": {**given["env"], STORE_VARIABLE: installation.store}, **image}
        deployment["work_pool"] = {"name": installation.pool, "job_variables": variables}
    folder = IMAGE_FOLDER if installation.image else installation.folder
    document["pull"] = [{"prefect.deployments.steps.set_working_directory": {"directory": folder}}]
    return document
