"""What `deerstalker up` says of a server elsewhere that cannot be used."""

import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.prefect_server import without_prefect
from tests.support.processes import DEERSTALKER
from tests.support.serving import serving


class _Healthy(BaseHTTPRequestHandler):
    """Says that it is well, and never answers anything else."""

    def do_GET(self) -> None:
        if self.path.endswith("/health"):
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"true")

    def do_POST(self) -> None:
        self.close_connection = True


def test_a_server_that_stops_answering_is_named(tmp_path: Path) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _Healthy)) as silent:
        api = f"http://127.0.0.1:{silent.server_port}/api"
        command = [DEERSTALKER, "up", "--no-worker", "--server", api]
        done = subprocess.run(
            [*command, "--store", str(tmp_path)],
            env={**without_prefect(), "PREFECT_CLIENT_MAX_RETRIES": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Prefect API {api}: " in done.stderr
    assert "expected a server that answers; restart it; then the same command" in done.stderr
    assert "internal" not in done.stderr
