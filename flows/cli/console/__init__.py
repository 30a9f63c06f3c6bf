"""Code that the commands share: options, arguments, output, version."""
