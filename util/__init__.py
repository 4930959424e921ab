"""Helpers without knowledge of the project's domain: argument checks, files, text tables, progress, HTML reports."""
