"""Environment variables for Prefect, vLLM and the hub clients: quiet, local, without telemetry.

They must be set before Prefect is imported. Variables that the user has set are kept.
"""

import os
from pathlib import Path

_SILENT = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

_QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

SHORT_LIVED_SERVER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in (
            "CANCELLATION_CLEANUP",
            "CLEANUP_RECONCILER",
            "EVENT_PERSISTER",
            "FOREMAN",
            "LATE_RUNS",
            "PAUSE_EXPIRATIONS",
            "SCHEDULER",
            "TRIGGERS",
        )
    },
}
"""Variables of a server that ends with its command: it needs no scheduler and no services that expire or watch runs.

Events are not stored, because nothing reads them: they would take two thirds of the database. States of runs are.
"""

_RECOVERABLE = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Heartbeats at the interval that the automation for dead runs expects; leases that survive a server's restart."""

_UP_SERVER = {
    "PREFECT_SERVER_UI_ENABLED": "true",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


def prepare_command_environment(home: Path, *, debug: bool) -> None:
    """Sets the variables for a command that runs a flow. Flows report to the server that `up` runs for `home`, if any.

    Args:
        home: PREFECT_HOME, which holds Prefect's database, unless the user has set that variable.
        debug: Whether Prefect logs to the console.
    """
    from flows.orchestration.server.api_access import CLIENT_VARIABLE
    from flows.orchestration.server.local_server import auth_string_of, running_server

    variables = _common(home)
    if url := running_server(Path(variables["PREFECT_HOME"])):
        os.environ.setdefault("PREFECT_API_URL", url)
    if auth := auth_string_of(os.environ.get("PREFECT_API_URL"), Path(variables["PREFECT_HOME"])):
        os.environ.setdefault(CLIENT_VARIABLE, auth)
    if not debug:
        variables |= _QUIET
    if not os.environ.get("PREFECT_API_URL"):
        variables |= SHORT_LIVED_SERVER
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def prepare_server_environment(home: Path) -> Path:
    """Sets the variables for the server and worker of `deerstalker up`, and returns PREFECT_HOME.

    Args:
        home: PREFECT_HOME, unless the user has set that variable.
    """
    variables = {**_common(home), **_UP_SERVER}
    variables["PREFECT_SERVER_UI_STATIC_DIRECTORY"] = str(Path(variables["PREFECT_HOME"]) / "ui")
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    return Path(os.environ["PREFECT_HOME"])


def _common(home: Path) -> dict[str, str]:
    home = Path(os.environ.get("PREFECT_HOME") or home.expanduser().resolve())
    return {
        **_SILENT,
        **_RECOVERABLE,
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS": "64",  # else a thread for each stretch of a puzzle set
    }
