"""`python -m leakgauge`: the command line where no script is on the path."""

from leakgauge.cli import main

if __name__ == "__main__":  # workers import this module under another name
    main(prog_name="leakgauge")
