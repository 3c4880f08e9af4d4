"""The command: `python audit.py --method fedrand --attack maxrenyi`; `--help` and `--list` show what there is."""

# PYTHON_ARGCOMPLETE_OK, for shells that complete `python audit.py`
from fedaudit.__main__ import run

if __name__ == "__main__":
    run()
