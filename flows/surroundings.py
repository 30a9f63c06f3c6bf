"""The environment a flow runs in, set before Prefect is imported: quiet, local, and phoning nobody."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_STORE = "./deerstalker-data"

_SILENT = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

_SHORT_LIVED_SERVER = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in (
            "CANCELLATION_CLEANUP",
            "CLEANUP_RECONCILER",
            "FOREMAN",
            "LATE_RUNS",
            "PAUSE_EXPIRATIONS",
            "REPOSSESSOR",
            "SCHEDULER",
            "TRIGGERS",
        )
    },
}
"""A server that lives as long as one command has nothing to schedule, to expire or to watch over."""


def prepare_surroundings(home: Path, *, debug: bool, hub: bool = False) -> None:
    """Sets the environment variables that Prefect, vLLM and the hub clients read; call it before importing Prefect.

    What the user has set stays as it is.

    Args:
        home: Local folder for Prefect's database, unless PREFECT_HOME is set.
        debug: Let Prefect log to the console.
        hub: The user named a model of the Hugging Face hub: let it be looked up.
    """
    wanted = dict(_SILENT)
    if not hub:
        wanted |= _OFFLINE
    home = Path(os.environ.get("PREFECT_HOME") or home.expanduser().resolve())
    wanted["PREFECT_HOME"] = str(home)
    wanted["PREFECT_LOCAL_STORAGE_PATH"] = str(home / "storage")
    wanted["PREFECT_MEMO_STORE_PATH"] = str(home / "memo_store.toml")
    if not debug:
        wanted |= _QUIET
    if uses_local_server():
        wanted |= _SHORT_LIVED_SERVER
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def uses_local_server() -> bool:
    """Whether runs go to a Prefect server of this process's own, because the user named none."""
    return not os.environ.get("PREFECT_API_URL")


@contextmanager
def short_lived_runs() -> Iterator[None]:
    """Turns flow-run heartbeats off, which cost a second at the end of each run and have no watcher on a local server."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    if not uses_local_server():
        yield
        return
    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
