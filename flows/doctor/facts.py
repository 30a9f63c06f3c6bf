"""Gathers facts of the machine, the installed software and Prefect."""

import importlib.metadata
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from artifacts.errors import DeerstalkerError
from artifacts.provenance import hardware
from flows.orchestration.server.api_access import CLIENT_VARIABLE, auth_headers, bounded_get
from flows.orchestration.server.local_server import InstallationRecord, auth_string_of, running_server
from stages.hardware.compute_type import ComputeType, cpu_flags, matmul_gflops
from stages.hardware.cuda import CudaFacts, cuda_facts, free_gpu_bytes
from stages.processes.cgroups import cpu_quota
from stages.processes.memory import limit_bytes, spare_bytes

EXTRAS = ("wandb", "tensorboard")
_CONNECT_LIMIT_S, _ANSWER_LIMIT_S = 1.5, 15.0
"""A server on a busy machine takes a connection at once and answers late."""
_FIRST_USER_ID, _NOBODY_ID = 1000, 65534


@dataclass(frozen=True, kw_only=True)
class MachineFacts(CudaFacts):
    """The resources of the machine that this process may use, and the installed software.

    Attributes:
        flags: Feature flags of the CPU, without those that ONEDNN_MAX_CPU_ISA forbids.
        cores: Cores that this process may run on.
        quota: CPU time that control groups grant, in cores; None without a limit.
        memory_bytes: Memory of the machine.
        limit_bytes: Lowest memory limit of the control groups; None if none is below the machine's memory.
        spare_bytes: Memory that this process may still allocate.
        free_gpu_bytes: Free memory of each of `gpus`; empty if unknown.
        extras: Versions of the optional packages, None for one that is not installed.
    """

    cpu: str
    flags: frozenset[str]
    cores: int
    memory_bytes: int
    spare_bytes: int
    quota: float | None = None
    limit_bytes: int | None = None
    free_gpu_bytes: tuple[int, ...] = ()
    extras: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    @property
    def usable_cores(self) -> float:
        """CPU time that this process may use, in cores."""
        return self.cores if self.quota is None else min(self.cores, self.quota)

    @property
    def room_bytes(self) -> int:
        """Memory that this process could use if no other program ran."""
        return self.memory_bytes if self.limit_bytes is None else self.limit_bytes


@dataclass(frozen=True)
class SpeedFacts:
    """Measured rates of matrix products on one CPU core.

    Attributes:
        gflops: GFLOP/s by compute type; empty if the measurement failed.
        error: The error of the measurement; empty if it succeeded.
    """

    gflops: Mapping[ComputeType, float] = field(default_factory=dict[ComputeType, float])
    error: str = ""


@dataclass(frozen=True)
class PrefectFacts:
    """The Prefect API to which a command would report.

    Attributes:
        client: Installed version of Prefect.
        url: Address of the API; None if a command would start its own server.
        named_by: Source of the address: `PREFECT_API_URL` or `deerstalker up`.
        server: Version of the server; empty if unknown.
        error: Why the API cannot be used; empty if it answers.
        others: Other accounts of this machine that could use the API, because it is local and has no password.
    """

    client: str
    url: str | None = None
    named_by: str = ""
    server: str = ""
    error: str = ""
    others: tuple[str, ...] = ()


def machine_facts() -> MachineFacts:
    """Returns the facts of this machine, from the kernel, the CUDA driver and the metadata of installed packages."""
    recorded = hardware()
    return MachineFacts(
        **vars(cuda_facts()),
        cpu=recorded["cpu"],
        flags=cpu_flags(),
        cores=recorded["cores"],
        quota=cpu_quota(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        limit_bytes=limit_bytes(),
        spare_bytes=spare_bytes(),
        free_gpu_bytes=free_gpu_bytes(),
        extras={name: _version(name) for name in EXTRAS},
    )


def speed_facts() -> SpeedFacts:
    """Measures matrix products in a child process; takes some seconds."""
    try:
        return SpeedFacts(matmul_gflops())
    except DeerstalkerError as error:
        return SpeedFacts(error=str(error))


def prefect_facts(home: Path) -> PrefectFacts:
    """Returns facts of the Prefect API to which a command in this environment would report; starts no server.

    Args:
        home: Folder of the local server's record, unless PREFECT_HOME is set.
    """
    client, home = _version("prefect") or "", Path(os.environ.get("PREFECT_HOME") or home)
    url, named_by = os.environ.get("PREFECT_API_URL"), "PREFECT_API_URL"
    try:
        own = running_server(home)
        if not url:
            url, named_by = own, "`deerstalker up`"
        auth, record = auth_string_of(url, home), InstallationRecord.read(home)
    except DeerstalkerError as error:
        return PrefectFacts(client, error=str(error))
    if not url:
        return PrefectFacts(client)
    facts = ask_prefect(client, url, named_by, auth)
    unguarded = record is not None and record.auth is None and url == own and not facts.error
    return replace(facts, others=other_accounts()) if unguarded else facts


def other_accounts() -> tuple[str, ...]:
    """Returns the names of other users of this machine: accounts with a login shell, except the administrator."""
    return tuple(
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid >= _FIRST_USER_ID
        and account.pw_uid not in (_NOBODY_ID, os.getuid())
        and not account.pw_shell.endswith(("nologin", "false"))
    )


def ask_prefect(client: str, url: str, named_by: str, auth: str | None = None) -> PrefectFacts:
    """Returns facts of a Prefect API, from requests for its health and its version.

    Args:
        auth: Auth string of the API, unless PREFECT_API_AUTH_STRING is set; None uses PREFECT_API_KEY, if set.
    """
    import httpx

    shown = re.sub(r"//.*@", "//", url)  # an invalid URL may contain a password, too
    headers = auth_headers(os.environ.get(CLIENT_VARIABLE) or auth, os.environ)
    try:
        shown = str(httpx.URL(url).copy_with(userinfo=b""))
        limits = httpx.Timeout(_ANSWER_LIMIT_S, connect=_CONNECT_LIMIT_S)
        with httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=limits) as api:
            health, version = bounded_get(api, "/health"), bounded_get(api, "/admin/version")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return PrefectFacts(client, shown, named_by, error=f"{type(error).__name__}: {error}")
    refused = next((answer for answer in (health, version) if answer.status_code in (401, 403)), None)
    if refused or not health.is_success:
        return PrefectFacts(client, shown, named_by, error=f"HTTP {(refused or health).status_code}")
    server = version.text.strip('"') if version.is_success else ""
    return PrefectFacts(client, shown, named_by, server if re.fullmatch(r"\d+\.\d+[\w.+-]*", server) else "")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
