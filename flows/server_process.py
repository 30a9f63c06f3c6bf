"""The process of a local Prefect server; run as a script with a listening socket: `python server_process.py FD`."""

import socket
import sys

import uvicorn
from prefect.server.api.server import create_app

from flows.database_template import fill_new_database

if __name__ == "__main__":
    fill_new_database()
    config = uvicorn.Config(create_app(), log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
