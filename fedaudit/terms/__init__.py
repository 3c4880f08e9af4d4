"""The vocabulary of findings, tables and pages: typed words, each group as a tuple in reading order."""
