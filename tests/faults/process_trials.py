"""Faults of processes: kills and signals at random times, several processes in one folder."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import killed_run
import killed_sweep
import numpy as np
import processes
from faults import Outcome, Result, Trial

_RUN, _SWEEP = pathlib.Path(killed_run.__file__), pathlib.Path(killed_sweep.__file__)
_COMMAND = """run quickstart --model softmax_regression --num-clients 20 --cohort-size 3 --rounds 30
    --local-steps 2 --seeds 1 --eval-every 1 --algorithms fedavg --output""".split()
_IN_USE = "is in use by process"


class Processes:
    """Programs that are killed, interrupted or started twice, and what they give undisturbed."""

    def __init__(self, base: pathlib.Path):
        self.env = processes.environment(base / "cache")
        self.base = base
        self._expected: dict[str, list[bytes]] = {}

    def trials(self) -> dict[str, Trial]:
        return {
            "processes: SIGKILL of a run": self._killed_run,
            "processes: SIGKILL of a sweep": self._killed_sweep,
            "processes: SIGINT or SIGTERM of a command": self._signalled,
            "processes: two commands in one folder": self._two,
            "processes: three sweeps in one folder": self._three,
        }

    def _start(self, *command: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *map(str, command)], env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _finish(self, *command: object) -> tuple[int, str]:
        process = self._start(*command)
        _, errors = process.communicate(timeout=300)
        return process.returncode, errors

    def _result(self, kind: str, folder: pathlib.Path) -> list[bytes]:
        """Returns the files that must be equal after any fault."""
        if kind == "sweep":  # the names of slices have the folder's identifier
            return sorted(path.read_bytes() for path in folder.glob("slices/*.npz"))
        return [path.read_bytes() for path in sorted(folder.glob("**/history.csv"))]

    def _compared(self, kind: str, folder: pathlib.Path, *command: object) -> Result:
        """Finishes a program in a folder and compares its files with an undisturbed one's."""
        code, errors = self._finish(*command, folder, *([0] if kind != "command" else []))
        if code:
            return Result(Outcome.LOST, errors[-300:])
        if kind not in self._expected:
            alone = self.base / f"{kind}-alone"
            self._finish(*command, alone, *([0] if kind != "command" else []))
            self._expected[kind] = self._result(kind, alone)
        same = self._result(kind, folder) == self._expected[kind]
        return Result(Outcome.SAME) if same else Result(Outcome.LOST, "other bits")

    def _killed_run(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        self._kill_later(rng, self._start(_RUN, folder, 0.05), folder, "history.csv")
        return self._compared("run", folder, _RUN)

    def _killed_sweep(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        self._kill_later(rng, self._start(_SWEEP, folder, 0.05), folder, "slices/*.npz")
        return self._compared("sweep", folder, _SWEEP)

    def _kill_later(self, rng, process: subprocess.Popen, folder: pathlib.Path, begun: str):
        """Kills a process at a random time after it has begun to write."""
        while not list(folder.glob(begun)) and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        process.communicate()

    def _signalled(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        command = ("-m", "fedjax_sim.cli", *_COMMAND)
        process = self._start(*command, folder)
        while not (folder / "config.json").exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 1.5))
        number = signal.Signals(int(rng.choice([signal.SIGINT, signal.SIGTERM])))
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
        if process.returncode not in (0, 128 + number) or "Traceback" in errors:
            return Result(Outcome.UNDOCUMENTED, f"{process.returncode}: {errors[-300:]}")
        return self._compared("command", folder, *command)

    def _two(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        command = ("-m", "fedjax_sim.cli", *_COMMAND)
        processes = [self._start(*command, folder)]
        time.sleep(rng.uniform(0, 2))
        processes.append(self._start(*command, folder))
        errors = [process.communicate(timeout=300)[1] for process in processes]
        for process, text in zip(processes, errors, strict=True):
            refused = process.returncode == 1 and _IN_USE in text and text.count("\n") == 1
            if process.returncode and not refused:
                return Result(Outcome.UNDOCUMENTED, f"{process.returncode}: {text[-300:]}")
        return self._compared("command", folder, *command)

    def _three(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        """One of them is killed."""
        processes = [self._start(_SWEEP, folder, 0.05) for _ in range(3)]
        self._kill_later(rng, processes[rng.integers(3)], folder, "slices/*.npz")
        for process in processes:
            if process.returncode is None:
                _, errors = process.communicate(timeout=300)
                if process.returncode:
                    return Result(Outcome.UNDOCUMENTED, errors[-300:])
        return self._compared("sweep", folder, _SWEEP)


def tmpfs_trials(start, bits: list[bytes]) -> dict[str, Trial]:
    """Returns trials on a disk that is full, where the system lets this process mount one."""
    if os.name == "nt" or os.geteuid() != 0 or shutil.which("mount") is None:
        return {}

    def trial(rng: np.random.Generator, folder: pathlib.Path) -> Result:
        folder.mkdir()
        size = f"size={int(rng.integers(40, 500))}k"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            return Result(Outcome.SAME, "no disk could be mounted")
        try:
            try:
                start(folder / "run")
            except OSError as error:
                if str(folder) not in str(error):
                    return Result(Outcome.UNDOCUMENTED, repr(error))
            except Exception as error:
                return Result(Outcome.UNDOCUMENTED, repr(error))
            subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
            same = start(folder / "run") == bits
            return Result(Outcome.SAME) if same else Result(Outcome.LOST, "other bits")
        finally:
            subprocess.run(["umount", str(folder)], check=True)

    return {"run: full disk (tmpfs)": trial}
