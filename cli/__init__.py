"""The command line: commands, options, progress, the demo, report pages."""
