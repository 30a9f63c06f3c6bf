"""The commands of `deerstalker`; each module is imported when its command is used."""
