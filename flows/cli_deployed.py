"""The commands around deployments; `flows.cli` registers them."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.options import STORED, Stored

Optional = Parameter(show_default=False)


def iterate(
    run: str,
    /,
    *,
    more: Annotated[int | None, Optional] = None,
    until: Annotated[int | None, Optional] = None,
    refresh: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    profile: str = "cpu",
    options: Stored = STORED,
) -> None:
    """Go on with a run that was begun, by its frozen recipe.

    Parameters
    ----------
    run
        Name of the run.
    more
        So many iterations more than there are.
    until
        Up to this iteration; instead of --more.
    refresh
        Stage to redo though published, in every iteration or as STAGE@ITERATION in one; may be repeated.
    profile
        Name of a profile, or path of a TOML file.
    """
    from flows.commands.iterate import iterate_command

    iterate_command(run, more, until, profile, refresh=refresh, options=options)


def up(
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 4200,
    host: str = "127.0.0.1",
    auth: Annotated[bool, Parameter(negative=())] = False,
    server: Annotated[str | None, Optional] = None,
    pool: str = "deerstalker",
    image: Annotated[str | None, Optional] = None,
    gpu_slots: Annotated[int | None, Parameter(show_default=False, validator=Number(gte=1, lte=10_000))] = None,
    zombie_after: Annotated[float | None, Parameter(show_default=False, validator=Number(gte=60, lte=1e7))] = None,
    worker: bool = True,
    options: Stored = STORED,
) -> None:
    """Start a Prefect server with its user interface and a worker, and deploy every flow; may be called again.

    Parameters
    ----------
    port
        Where the local server listens; 0 takes a free one.
    host
        Name or address of this machine at which the local server listens. Another one than 127.0.0.1 needs --auth.
    auth
        Have the local server ask for a password, which is made and kept in a file that only you can read.
    server
        Use the Prefect API at this address, such as http://HOST:PORT/api, instead of starting a server.
    pool
        Work pool of the deployments; made as a process pool where it is missing. Deployments of another pool than
        `deerstalker` carry its name.
    image
        Container image of the flow runs, for pools that start containers.
    gpu_slots
        How many runs may use a GPU side by side; 1 at first, then what it was.
    zombie_after
        Seconds without a heartbeat after which a run counts as crashed; 120 at first, then what it was.
    worker
        Start a worker on this machine.
    """
    from flows.commands.up import up_command

    up_command(
        port,
        host=host,
        auth=auth,
        server=server,
        pool=pool,
        image=image,
        gpu_slots=gpu_slots,
        zombie_after_s=zombie_after,
        worker=worker,
        options=options,
    )


def down(*, options: Stored = STORED) -> None:
    """End the server and the worker that `up` started, and nothing else."""
    from flows.commands.up import down_command

    down_command(options)
