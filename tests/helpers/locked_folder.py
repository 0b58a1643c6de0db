"""A process that locks a folder, says so, and waits for its end.

python locked_folder.py FOLDER
"""

import pathlib
import sys

from fedjax_sim.runs.storage.locks import locked

if __name__ == "__main__":
    with locked(pathlib.Path(sys.argv[1])):
        print("locked", flush=True)
        sys.stdin.read()
