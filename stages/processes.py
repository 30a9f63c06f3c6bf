"""Pool processes that do not outlive the process they work for."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it through `multiprocessing` is gone, however it went.

    An idle pool process waits for work for ever, and keeps the server alive that forked it.
    """
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="parent-watch", daemon=True).start()
