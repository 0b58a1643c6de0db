"""Commands that vary options of a comparison: what they read from words, presets and files."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from fedjax_sim.cli.options import check_replaced, parse, split_arguments, study_of, with_hyper
from fedjax_sim.runs import FolderError
from fedjax_sim.studies.setups import (
    PRESETS,
    Run,
    Study,
    members_of,
    refuse_own,
    replaced,
    validated,
)

Options = TypeVar("Options")
Saved = TypeVar("Saved")


class Varying(NamedTuple, Generic[Options, Saved]):
    """A command that varies options of a comparison."""

    command: str
    member: str  # of config.json, which has its options
    options: type[Options]
    saved: type[Saved]  # the parts of config.json that are read again
    axes: str  # the option with the values that vary, by name
    axis: type
    flags: re.Pattern[str]  # of an axis, whose name is the first group

    def read_saved(self, path: pathlib.Path) -> Saved:
        """Returns what is read again of a ``config.json``."""
        members = members_of(path)
        if members and self.member not in members:
            raise FolderError(
                f"{path} is no file of a {self.member}; expected one that fedjax-sim "
                f"{self.command} wrote"
            )
        return validated(self.saved, path, json.dumps(members).encode() if members else None)

    def read(
        self, arguments: Sequence[str], description: str
    ) -> tuple[str, list[str], Study, Options]:
        """Returns the preset, file or study module, the other arguments, the study and the options.

        A preset gives its settings, a comparison's file also its algorithms and hyper-parameters;
        as many seeds as for a curve are too many to vary options.  A study module also decides the
        seeds.
        """
        source, rest = split_arguments(arguments)
        path, config = pathlib.Path(source), cast(Any, self.options())
        if path.suffix == ".json" and self.member in members_of(path):
            saved: Any = self.read_saved(path)
            refuse_own(path, saved.own)
            config = getattr(saved, self.member)
            study = Study(config.run)
        else:
            study = _study_to_vary(source, config.run)
        study = with_hyper(study, rest)
        # The parser knows the options of a dict by the names that its default has.
        names = [match[1].replace("-", "_") for x in rest if (match := self.flags.fullmatch(x))]
        axes = {name: self.axis() for name in names} or getattr(config, self.axes)
        default = dataclasses.replace(config, run=study.options, **{self.axes: axes})
        config = parse(self.options, f"{self.command} {source}", description, rest, default)
        run = cast(Any, config).run
        check_replaced(study, source, rest, run)
        return source, rest, study.replaced(options=run), config


def _study_to_vary(source: str, default: Run) -> Study:
    """Returns a study with the output folder, and if its source allows it the seeds, of a default.

    A preset has many algorithms, of which FedAvg remains.
    """
    study = study_of(source)
    run = dataclasses.replace(study.options, output=default.output)
    if not source.endswith(".py"):
        run = dataclasses.replace(run, seeds=default.seeds)
    if source in PRESETS:
        run = replaced(run, "algorithms", ("fedavg",))
    return study.replaced(options=run)
