"""The subcommands, one file each. Loaded by entry point, never imported by name."""
