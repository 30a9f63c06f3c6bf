"""What the commands of `deerstalker` do; each module is imported when its command runs."""
