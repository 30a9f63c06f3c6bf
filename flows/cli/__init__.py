"""The command line: a module for each command or for related ones, imported when one of them runs."""
