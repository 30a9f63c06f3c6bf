"""The trainer's processes: start, jobs, network, and the watch for hangs."""
