"""Client data: containers, minibatches, augmentation, partitions, summaries."""

from fedjax_sim.data import (
    augmentation,
    batches,
    feature_shift,
    federated,
    generated,
    partition,
    summary,
    task,
    tokens,
)
from fedjax_sim.data.archives import read_npz
from fedjax_sim.data.augmentation import CIFAR_MEAN, CIFAR_STD
from fedjax_sim.data.batches import (
    Batches,
    Pick,
    complete_batches,
    epochs,
    full_batch,
    shuffled_repeats,
    stream,
    with_replacement,
)
from fedjax_sim.data.feature_shift import add_noise, noise_levels, rotate
from fedjax_sim.data.federated import (
    FederatedData,
    check_assignment,
    check_clients,
    from_assignment,
    from_clients,
    from_lists,
    leaf_of,
    with_leaf,
)
from fedjax_sim.data.generated import generated_data, generated_task
from fedjax_sim.data.inspection import (
    check_disjoint,
    check_finite,
    check_numbers,
    largest_input,
    missing,
    with_nan,
)
from fedjax_sim.data.partition import hold_out, iid, train_test_split
from fedjax_sim.data.partition._dealing import group_rows
from fedjax_sim.data.source import ClientSource, assigned
from fedjax_sim.data.summary import has_classes, label_counts, summarize
from fedjax_sim.data.task import (
    Objective,
    empirical_task,
    kept_per_step,
    running_statistics_of,
    shared_task,
)
from fedjax_sim.data.tokens import (
    Short,
    check_short,
    next_tokens,
    padded_chunks,
    token_ids,
    token_windows,
)

__all__ = [
    "augmentation",
    "batches",
    "feature_shift",
    "federated",
    "generated",
    "partition",
    "summary",
    "task",
    "tokens",
]
