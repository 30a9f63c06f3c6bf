"""What holds for the whole suite, which runs in two processes side by side.

Property tests have no deadline: how long an example takes tells of the machine, not of the code.
"""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
