"""`deerstalker up` and `deerstalker down`."""

import os
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from artifacts.errors import BadInputError
from artifacts.local.full_disk import DiskWatch, temporary_folder
from artifacts.local.input_files import with_home
from artifacts.store import location
from artifacts.store.location import DATA_FOLDER, DEFAULT_STORE
from artifacts.store.store import Store
from flows.cli.console.options import STORED, Flag, Optional, Stored
from flows.cli.console.output import local_folder, print_json
from flows.config.settings import validate
from flows.orchestration.run_environment import prepare_server_environment
from flows.orchestration.server.api_access import masked
from flows.orchestration.server.local_server import (
    InstallationRecord,
    database_lock,
    end_process,
    installation_lock,
    remove_settings,
    start_worker,
    stop_process,
    wait_until_healthy,
    write_settings,
)
from flows.orchestration.server.up_server import (
    LocalServer,
    ensure_server,
    export_command,
    parse_external_server,
    remove_external_password,
    set_client_environment,
)
from flows.report.text.visible import one_line


def up(
    *,
    port: Annotated[int | None, Parameter(show_default=False, validator=Number(gte=0, lte=65535))] = None,
    host: Annotated[str | None, Optional] = None,
    auth: Flag = False,
    server: Annotated[str | None, Optional] = None,
    pool: str = "deerstalker",
    image: Annotated[str | None, Optional] = None,
    gpu_slots: Annotated[int | None, Parameter(show_default=False, validator=Number(gte=1, lte=10_000))] = None,
    zombie_after: Annotated[float | None, Parameter(show_default=False, validator=Number(gte=60, lte=1e7))] = None,
    worker: bool = True,
    options: Stored = STORED,
) -> None:
    """Starts the server and the worker that do not run yet, deploys the flows, and prints the next commands.

    Args:
        port: Port of the local server, 4200 unless given; 0 takes a free one.
        host: Name or address of this machine on which the local server listens, 127.0.0.1 unless given. If other
            machines can reach it, --auth is required.
        auth: Protect the local server with a generated password, which is kept in a file that only you can read.
        server: Use the Prefect API at this address, such as http://HOST:PORT/api, instead of starting a server.
        pool: Work pool of the deployments; a missing pool is created as a process pool. If it is not `deerstalker`, the
            names of the deployments end in its name.
        image: Container image of the flow runs, for pools that start containers.
        gpu_slots: Number of runs that may use a GPU at the same time; by default the current number, initially 1.
        zombie_after: Seconds without an event, such as a heartbeat, after which a run is marked crashed; by default the
            current value, initially 120.
        worker: Start a worker on this machine.
    """
    if image and options.store == DATA_FOLDER:
        raise BadInputError(
            "--store", f"{options.store}, a folder of this machine, with --image", "s3://bucket/prefix",
            "name a folder only if containers have it at the same place",
        )  # fmt: skip
    local = LocalServer(host or None, port, auth)
    external = parse_external_server(server, local)
    store = Store.open(options.store)
    home = prepare_server_environment(local_folder(store))
    disks = DiskWatch((home, temporary_folder()))
    with disks, disks.explaining(), installation_lock(home), _stopped_on_failure(home):
        before = InstallationRecord.read(home) or InstallationRecord(url="")
        record, alone_since = ensure_server(before, home, external, local)
        if worker and record.worker and record.worker.alive and record.worker.pool != pool:
            running = f"a worker of pool {record.worker.pool} runs for {home}"
            raise BadInputError(
                f"--pool {pool}", running, "one worker a folder", "--no-worker, or `deerstalker down` first"
            )
        if record.server:
            wait_until_healthy(record.url, record.server, home / "server.log")
        set_client_environment(record)
        from flows.orchestration.installation import Installation, install
        from flows.orchestration.server.backend import explain_no_answer

        settings = {
            "store": options.store if "://" in options.store else str(with_home(options.store).resolve()),
            "folder": "." if server else str(Path.cwd()),  # other machines may not have this folder
            "pool": pool,
            "image": image,
            "gpu_slots": gpu_slots,
            "zombie_after_s": zombie_after,
        }
        installation = validate(Installation, settings, "up")
        with explain_no_answer(f"see {home / 'server.log'}" if record.server else "restart it"):
            if record.gone_workers or alone_since:
                _crash_runs("Found without a process by `deerstalker up`.", record.gone_workers, alone_since)
            deployments = install(installation)
        if worker and not (record.worker and record.worker.alive):
            with database_lock(home) as (lock, _):
                started = start_worker(home, pool, os.environ, lock)
                record = record.model_copy(update={"worker": started, "gone": record.gone_workers})
                record.write(home)
        prefect_toml = write_settings(Path.cwd(), record.url, record.auth_string)
        if prefect_toml and prefect_toml not in record.settings:
            record = record.model_copy(update={"settings": (*record.settings, prefect_toml)})
        record.write(home)
    if options.json:
        print_json({**record.model_dump(mode="json"), "pool": pool, "deployments": deployments})
        return
    folder = "" if options.store == DEFAULT_STORE else f" --store {one_line(options.store)}"
    sys.stdout.write(
        f"{'Prefect server' if record.server else 'Prefect'}: {one_line(record.url.removesuffix('/api'))}\n"
        f"work pool {one_line(pool)}: {'a worker runs here' if record.worker else 'no worker started here'}\n"
        f"deployments: {one_line(', '.join(deployments))}\n"
        + (f"password of its pages, auth string of its API: in {one_line(str(record.auth))}\n" if record.auth else "")
        + ("\n" if prefect_toml else f"\n{export_command(record)}")
        + f"prefect deployment run {one_line(deployments[0])} --watch\n"
        f"deerstalker down{folder}\n"
    )


@contextmanager
def _stopped_on_failure(home: Path) -> Generator[None]:
    """Stops the server and the worker that the block has started if the block fails."""
    before = InstallationRecord.read(home)
    try:
        yield
    except BaseException:
        after = InstallationRecord.read(home)
        started = [process for process in (after.worker, after.server) if process] if after else []
        started = [process for process in started if before is None or process not in (before.worker, before.server)]
        for process in started:  # signal all of them before waiting, because an interrupted command ends soon
            end_process(process)
        for process in started:
            stop_process(process)
        raise


def _crash_runs(message: str, workers: Collection[str], alone_since: datetime | None = None) -> None:
    """Marks dead runs as crashed.

    Args:
        message: Message of the runs' new state.
        workers: Names of workers that have ended; their runs are marked.
        alone_since: If given, runs that no worker started and that were created before this time are marked, too.
    """
    from flows.orchestration.server.dead_runs import crash_dead_runs

    before = alone_since or datetime.now(UTC)
    crash_dead_runs(message, before=before, workers=workers, unclaimed=alone_since is not None)


def _crash_runs_of_ended_workers(record: InstallationRecord) -> bool:
    """Marks the runs of ended workers as crashed, before the server is stopped; returns whether that succeeded.

    A failure is printed and not raised, because a broken server must still be stopped.
    """
    try:
        set_client_environment(record)
    except BadInputError as error:
        sys.stderr.write(f"{error}\n")
        return False
    os.environ |= {"PREFECT_API_REQUEST_TIMEOUT": "5", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    from flows.orchestration.api_errors import API_ERRORS

    try:
        _crash_runs("Ended by `deerstalker down`.", record.gone_workers)
    except API_ERRORS as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        warning = f"{masked(record.url)}: {problem}; the worker's runs count as running there until the next `up`"
        sys.stderr.write(one_line(warning) + "\n")
        return False
    return True


def down(*, options: Stored = STORED) -> None:
    """Stops the worker with its flows, then the server."""
    # A store that is no folder is not asked: it need not answer.
    store = Store.open(options.store, writable=False) if location.local_folder(options.store) else None
    home = prepare_server_environment(local_folder(store))
    ended: list[str] = []
    if InstallationRecord.read(home):  # without one, nothing runs, and the folder is not even made
        with installation_lock(home):
            ended = _end_all(home)
    if options.json:
        print_json({"ended": ended})
    else:
        sys.stdout.write(f"ended: {', '.join(ended)}\n" if ended else "nothing was running\n")


def _end_all(home: Path) -> list[str]:
    """Ends what `up` started for a data folder and returns the names of what was still running."""
    record = InstallationRecord.read(home)
    ended: list[str] = []
    if record is not None:
        runs_marked = True
        if record.worker:
            if stop_process(record.worker):
                ended.append("worker")
            if record.server.alive if record.server else ended:
                runs_marked = _crash_runs_of_ended_workers(record)
        if record.server and stop_process(record.server):
            ended.append("server")
        for path in record.settings:
            remove_settings(path)
        remove_external_password(record)
        if runs_marked:
            (home / "up.json").unlink()
        else:
            InstallationRecord(url=record.url, gone=record.gone_workers).write(home)
    return ended
