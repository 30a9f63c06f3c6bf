"""The process of a local Prefect server; run as a script with a listening socket: `python server_process.py FD [NAME]`.

NAME is the host name or address that the user gave. The server is Prefect's own, with the changes of
`prefect_workarounds.py`, middleware that refuses pages of other origins (`own_pages.py`), and a database that is copied
from a template if it is new (`database_template.py`).
"""

import gc
import os
import socket
import sys

if __name__ == "__main__":
    gc.disable()  # garbage collection takes a quarter of the import time
    os.umask(0o077)  # only the owner may read the database

    from flows.orchestration.server.own_pages import ORIGINS_VARIABLES, OwnPagesOnly, own_names

    listener = socket.socket(fileno=int(sys.argv[1]))
    address, port = listener.getsockname()[:2]
    names = own_names(address, port, "".join(sys.argv[2:]), os.environ)
    os.environ |= dict.fromkeys(ORIGINS_VARIABLES, ",".join(sorted(names.origins)))  # before Prefect is imported

    import uvicorn
    from prefect.server.api.server import create_app

    from flows.orchestration.server.database_template import fill_new_database
    from flows.orchestration.server.prefect_workarounds import apply_to_server, batches_finished

    apply_to_server()

    class Server(uvicorn.Server):
        """A server that ends only after the last batch of task runs is written."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Stops serving, then waits for the batches that are being written."""
            await super().shutdown(sockets)
            await batches_finished()

    fill_new_database()
    app = OwnPagesOnly(create_app(), names)
    gc.freeze()
    gc.enable()
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    Server(config).run(sockets=[listener])
