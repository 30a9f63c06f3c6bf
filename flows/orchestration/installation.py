"""What a Prefect server needs for Deerstalker: a work pool, GPU slots, an automation for dead runs, the deployments.

Everything is made only where it is missing, or replaced by the same; `install` may be called any number of times.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists
from prefect.utilities.importtools import import_object
from prefect.workers.process import ProcessWorker
from pydantic import Field

from artifacts.config import Config
from artifacts.errors import DeerstalkerError
from flows.orchestration.gpu_lease import ensure_limit
from flows.orchestration.server.backend import TAG

POOL = "deerstalker"
"""The pool whose deployments have their plain names."""

GPU_SLOTS = "gpu"
"""Name of the limit that profiles for GPUs name."""

ZOMBIES = "deerstalker: crash runs whose process is gone"
STILLBORN = "deerstalker: crash runs whose process never came"
IMAGE_FOLDER = "/opt/deerstalker"
_ZOMBIE_AFTER = timedelta(seconds=120)
_START_FACTOR = 3
_HEARD = (
    "Scheduled", "AwaitingConcurrencySlot", "Pending", "Submitting", "Running", "heartbeat",
    "Completed", "Failed", "Cancelled", "Crashed",
)  # fmt: skip


class Installation(Config):
    """What is installed.

    Attributes:
        store: Where deployments keep artifacts, unless a run says otherwise.
        folder: Where flow runs start, so that relative paths mean what they mean there; `.` is where their worker puts
            them.
    """

    store: str
    folder: str
    pool: str = POOL
    image: str | None = None
    gpu_slots: int | None = Field(default=None, ge=1, le=10_000)
    zombie_after_s: float | None = Field(default=None, ge=60.0, le=1e7)


def install(wanted: Installation, home: Path, environment: Mapping[str, str]) -> list[str]:
    """Installs all of it on the server that Prefect is set to, and returns the names of the deployments.

    Raises:
        DeerstalkerError: The deployments are refused.
    """
    with get_client(sync_client=True) as client:
        make_pool(client, wanted.pool)
        make_slots(client, wanted.gpu_slots)
        make_zombie_automations(client, timedelta(seconds=wanted.zombie_after_s) if wanted.zombie_after_s else None)
    return deploy(wanted, home, environment)


def make_pool(client: SyncPrefectClient, name: str) -> None:
    """A process work pool, unless there is a pool of that name, of whatever type."""
    template = ProcessWorker.get_default_base_job_template()
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
    except ObjectAlreadyExists:
        return


def make_slots(client: SyncPrefectClient, slots: int | None) -> None:
    """The GPU slots: as many as wanted, or one where the limit is missing and no number was given."""
    if slots is None:
        ensure_limit(client, GPU_SLOTS)
    else:
        client.upsert_global_concurrency_limit_by_name(GPU_SLOTS, slots)


def make_zombie_automations(client: SyncPrefectClient, within: timedelta | None) -> None:
    """Crashes a run that falls silent: where worker and flow die together, nobody else notices.

    Its heartbeats stop, or its worker took it on and died before it said more (`Pending`, before it is `Submitting` and
    bears the worker's name). A submitted run may wait for its machine or image for hours, and is watched only where it
    is a process of its worker's machine; that may take `_START_FACTOR` times as long to say something.

    Args:
        within: Silence that counts as death; several heartbeats. None leaves what was set before.
    """
    if within is None:
        found = client.read_automations_by_name(ZOMBIES)
        before = found[0].trigger if found else None
        within = before.within if isinstance(before, EventTrigger) else _ZOMBIE_AFTER
    # Other people's flows on the same server may send no heartbeats, or send them rarely.
    ours = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    process = {"prefect.resource.role": "work-pool", "prefect.work-pool.type": "process"}
    _crash_the_silent(client, ZOMBIES, {"Pending", "Running", "heartbeat"}, [ours], within)
    _crash_the_silent(client, STILLBORN, {"Submitting"}, [ours, process], _START_FACTOR * within)


def _crash_the_silent(
    client: SyncPrefectClient, name: str, after: set[str], related: list[dict[str, str]], within: timedelta
) -> None:
    """Makes or replaces an automation: flow runs of which nothing is heard for so long after these events are crashed.

    One that is already as wanted is left alone.

    Args:
        after: The last parts of the events' names; another of these starts the time anew.
        related: What a run must belong to, each of it.
    """
    wanted = AutomationCore(
        name=name,
        description="Installed by `deerstalker up`. A crashed run can be retried; a running one cannot.",
        trigger=EventTrigger(
            after={f"prefect.flow-run.{event}" for event in after},
            expect={f"prefect.flow-run.{event}" for event in _HEARD},
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
                message=f"Not heard of for {within.total_seconds():.0f} s.",
                force=False,
            )
        ],
    )
    found = client.read_automations_by_name(name)
    if not found:
        client.create_automation(wanted)
    elif found[0].model_dump(exclude={"id"}) != wanted.model_dump():
        client.update_automation(found[0].id, wanted)


def deploy(wanted: Installation, home: Path, environment: Mapping[str, str]) -> list[str]:
    """Deploys `deployments/prefect.yaml` with this store, pool and image, and returns `flow/deployment` names."""
    document = deployment_file(wanted)
    path = home / "prefect.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **environment,
            "PREFECT_API_URL": os.environ["PREFECT_API_URL"],
            "NO_COLOR": "1",
        },
        cwd=home,
        check=False,
    )
    if done.returncode != 0:
        raise DeerstalkerError("deployments", "refused", "a server that takes them", done.stdout.strip()[-1500:])
    return [f"{import_object(item['entrypoint']).name}/{item['name']}" for item in document["deployments"]]


def deployment_file(wanted: Installation) -> dict[str, Any]:
    """The packaged `prefect.yaml`, with what differs between installations filled in."""
    document: dict[str, Any] = yaml.safe_load(files("deployments").joinpath("prefect.yaml").read_text())
    for deployment in document["deployments"]:
        deployment["parameters"]["request"]["store"] = wanted.store
        if wanted.pool != POOL:
            deployment["name"] += f"-{wanted.pool}"  # beside those of other pools
        variables = {**deployment["work_pool"]["job_variables"], **({"image": wanted.image} if wanted.image else {})}
        deployment["work_pool"] = {"name": wanted.pool, "job_variables": variables}
    folder = IMAGE_FOLDER if wanted.image else wanted.folder
    document["pull"] = [{"prefect.deployments.steps.set_working_directory": {"directory": folder}}]
    return document
