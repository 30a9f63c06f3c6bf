"""The environment a flow runs in, set before Prefect is imported: quiet, local, and phoning nobody."""

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

_SHORT_LIVED_SERVER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in (
            "CANCELLATION_CLEANUP",
            "CLEANUP_RECONCILER",
            "FOREMAN",
            "LATE_RUNS",
            "PAUSE_EXPIRATIONS",
            "SCHEDULER",
            "TRIGGERS",
        )
    },
}
"""A server that lives as long as one command has nothing to schedule, to expire or to watch over."""

_WATCHED = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Heartbeats as often as the automation for dead runs expects them; leases that outlive a restart of the server."""

_LASTING = {
    "PREFECT_SERVER_UI_ENABLED": "true",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


def prepare_surroundings(home: Path, *, debug: bool) -> None:
    """Sets the environment variables that Prefect, vLLM and the hub clients read; call it before importing Prefect.

    What the user has set stays as it is. Where `deerstalker up` runs a server for this folder, flows report to it.

    Args:
        home: Local folder for Prefect's database, unless PREFECT_HOME is set.
        debug: Let Prefect log to the console.
    """
    from flows.orchestration.server.api_access import CLIENT_VARIABLE
    from flows.orchestration.server.local_server import auth_string_of, running_server

    wanted = _common(home)
    if url := running_server(Path(wanted["PREFECT_HOME"])):
        os.environ.setdefault("PREFECT_API_URL", url)
    if auth := auth_string_of(os.environ.get("PREFECT_API_URL"), Path(wanted["PREFECT_HOME"])):
        os.environ.setdefault(CLIENT_VARIABLE, auth)
    if not debug:
        wanted |= _QUIET
    if not os.environ.get("PREFECT_API_URL"):
        wanted |= _SHORT_LIVED_SERVER
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def lasting_surroundings(home: Path) -> Path:
    """The same for a server with a worker that stay; returns the folder of Prefect's database."""
    wanted = {**_common(home), **_LASTING}
    wanted["PREFECT_SERVER_UI_STATIC_DIRECTORY"] = str(Path(wanted["PREFECT_HOME"]) / "ui")
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    return Path(os.environ["PREFECT_HOME"])


def _common(home: Path) -> dict[str, str]:
    home = Path(os.environ.get("PREFECT_HOME") or home.expanduser().resolve())
    return {
        **_SILENT,
        **_WATCHED,
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
    }
