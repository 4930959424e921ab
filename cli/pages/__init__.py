"""Sections of report pages that commands write."""
