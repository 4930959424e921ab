"""Helpers without knowledge of the accelerator: argument checks, files, tables, report pages."""
