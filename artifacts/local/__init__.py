"""Files of this machine: bounded reads, full disks, the ends of logs."""
