"""What all commands share: options, arguments, output, version."""
