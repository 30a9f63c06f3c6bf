"""Starts `moto_server` with atomic conditional puts, as S3 has them: `python -P atomic_moto.py -H HOST -p PORT`.

moto looks whether there is a key and stores it in a second step, so of two writers at once both may create it.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_PUTTING = threading.Lock()
_answer: Callable[..., Iterable[bytes]] = DomainDispatcherApplication.__call__


def _one_at_a_time(app: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if "HTTP_IF_NONE_MATCH" not in environ:
        return _answer(app, environ, start_response)
    with _PUTTING:
        return _answer(app, environ, start_response)


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _one_at_a_time
    main(sys.argv[1:])
