"""All options of a comparison, and the presets."""

import pathlib
from typing import Annotated

from fedjax_sim.studies.setups.attack import Attack, NoAttack
from fedjax_sim.studies.setups.clients import NoShift, Population, Shift
from fedjax_sim.studies.setups.compression import CodecOptions, Feedback, NoCodec, NoFeedback
from fedjax_sim.studies.setups.data import Data, Named
from fedjax_sim.studies.setups.evaluation import Evaluation
from fedjax_sim.studies.setups.execution import ExecutionOptions
from fedjax_sim.studies.setups.fields import OPEN, Count, Seed, group
from fedjax_sim.studies.setups.model import Adapters, ModelOptions, NoAdapters
from fedjax_sim.studies.setups.partition import Dirichlet, Partition
from fedjax_sim.studies.setups.privacy import NoPrivacy, Privacy
from fedjax_sim.studies.setups.robust import NoRule, Robust
from fedjax_sim.studies.setups.sampling import Cohort, Sampling, Uniform
from fedjax_sim.studies.setups.selection import NoSelection, Selection
from fedjax_sim.studies.setups.settings import AlgorithmOptions
from fedjax_sim.studies.setups.time import Rounds, Time


@group
class Run:
    """A comparison: one data set, one partition, several algorithms, several seeds.

    All algorithms see the same clients, cohorts and minibatches, and start from the same models;
    these differ between seeds, the partition does not.  With a clock, algorithms differ in who
    reports when, and are compared over simulated time.  The defaults are the quickstart.
    """

    output: pathlib.Path = pathlib.Path("results/quickstart")
    """Folder for the results; a folder with an unfinished run of this configuration is resumed."""
    seeds: Count = 5
    """Number of seeds; all seeds of an algorithm run in one compiled program."""
    seed: Seed = 0
    """The first seed; the others follow it."""
    data: Annotated[Data, OPEN] = Named()
    """Data set."""
    partition: Annotated[Partition, OPEN] = Dirichlet()
    """Division of the training examples among the clients."""
    population: Annotated[Population, OPEN] = Population()
    shift: Shift = NoShift()
    """Change of each client's examples, once, before training. Test examples of the data set remain
    as they are, those of clients are changed, too."""
    model: Annotated[ModelOptions, OPEN] = ModelOptions()
    adapters: Adapters = NoAdapters()
    """Training of adapters instead of the model."""
    algorithms: Annotated[AlgorithmOptions, OPEN] = AlgorithmOptions()
    compress: CodecOptions = NoCodec()
    """Codec of the uploads."""
    feedback: Feedback = NoFeedback()
    """Memory of compression; the uploads of the algorithm have to be changes of the model."""
    compress_down: CodecOptions = NoCodec()
    """Codec of the changes of the server's messages (EF21-P)."""
    robust: Robust = NoRule()
    """Robust rule instead of the mean of the uploads."""
    attack: Attack = NoAttack()
    """Attack on all algorithms."""
    privacy: Privacy = NoPrivacy()
    """Differential privacy of clients."""
    time: Annotated[Time, OPEN] = Rounds()
    """Rounds, or simulated time."""
    sampling: Sampling = Uniform()
    """Clients per round."""
    selection: Selection = NoSelection()
    """Choice among these clients by the state of the run."""
    cohort: Annotated[Cohort, OPEN] = Cohort()
    evaluation: Annotated[Evaluation, OPEN] = Evaluation()
    execution: Annotated[ExecutionOptions, OPEN] = ExecutionOptions()
