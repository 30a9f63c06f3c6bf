"""The environment a flow runs in, set before Prefect is imported: quiet, local, and phoning nobody."""

import os
from pathlib import Path

DEFAULT_STORE = "./deerstalker-data"

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
            "REPOSSESSOR",
            "SCHEDULER",
            "TRIGGERS",
        )
    },
}
"""A server that lives as long as one command has nothing to schedule, to expire or to watch over."""


def prepare_surroundings(home: Path, *, debug: bool) -> None:
    """Sets the environment variables that Prefect, vLLM and the hub clients read; call it before importing Prefect.

    What the user has set stays as it is.

    Args:
        home: Local folder for Prefect's database, unless PREFECT_HOME is set.
        debug: Let Prefect log to the console.
    """
    wanted = dict(_SILENT)
    home = Path(os.environ.get("PREFECT_HOME") or home.expanduser().resolve())
    wanted["PREFECT_HOME"] = str(home)
    wanted["PREFECT_LOCAL_STORAGE_PATH"] = str(home / "storage")
    wanted["PREFECT_MEMO_STORE_PATH"] = str(home / "memo_store.toml")
    if not debug:
        wanted |= _QUIET
    if not os.environ.get("PREFECT_API_URL"):
        wanted |= _SHORT_LIVED_SERVER
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
