"""The process of a local Prefect server; run as a script with a listening socket: `python server_process.py FD`."""

import gc
import socket
import sys

if __name__ == "__main__":
    gc.disable()  # looking for garbage among modules takes a quarter of the time that importing them does
    import uvicorn
    from prefect.server.api.server import create_app

    from flows.database_template import fill_new_database

    fill_new_database()
    app = create_app()
    gc.freeze()
    gc.enable()
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
