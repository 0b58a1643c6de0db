"""Checks that run before compilation: of numbers, sizes, keys, timelines, setups, functions."""

from fedjax_sim.checks.calls import called, check_takes, shapes_text, takes
from fedjax_sim.checks.choices import (
    check_choice,
    check_known,
    check_part,
    did_you_mean,
    import_extra,
    install_command,
)
from fedjax_sim.checks.numbers import (
    INT32_MAX,
    check_at_least,
    check_at_most,
    check_count,
    check_counts,
    check_decay,
    check_number,
    check_one_number,
    check_positive,
    check_probability,
    check_rates,
    check_share,
    check_unused,
    floating_dtype,
    has_real_numbers,
    is_concrete,
    is_real,
    is_traced,
    largest_entries,
    least_entries,
    seeded,
)
from fedjax_sim.checks.oracles import checked_oracle
from fedjax_sim.checks.setups import (
    being_traced,
    check_batch,
    check_compiles,
    check_generator,
    check_is_algorithm,
    check_is_setup,
    check_key,
    check_keys,
    check_messages_encode,
    check_objective,
    check_setup,
    check_split_keys,
    check_statistics_last,
    last_wrapper,
    shapes_of_one,
)
from fedjax_sim.checks.sizes import check_bytes, check_horizon, check_timeline_size, host_memory
from fedjax_sim.checks.timelines import check_one_timeline, check_population, partial_rounds
