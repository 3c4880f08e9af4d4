"""The words of findings, tables and pages: typed values in groups, each in reading order. Imports nothing of ours."""
