"""Files of this machine: bounded reads, full disks, the last lines of logs."""
