"""Partitions: assignments of the rows of a data set to clients.

Every function returns a list with one integer array of row numbers per client, for
:func:`fedjax_sim.data.federated.from_assignment`.  All functions use NumPy on the host.  ``seed``
is an int or a ``numpy.random.Generator``; equal seeds give equal partitions.  PFLlib's partitions
take an int or a ``numpy.random.RandomState``, whose stream is frozen, and repeat its rows.

===================================  =====================  ===============  ====================
function                             label distribution     client sizes     each example is used
===================================  =====================  ===============  ====================
:func:`iid`                          equal                  equal up to one  once
:func:`dirichlet`                    Dir(alpha C p)         equal            any number of times
 ``disjoint=True``                   nearly so              equal            at most once
:func:`dirichlet_by_class`           Dir(alpha) / class     ragged           once
:func:`classes_per_client`           k classes              equal*           at most once
:func:`label_quantity`               k classes              ragged           at most once
:func:`shards`                       k pieces of a sorting  equal            at most once
:func:`pachinko`                     Dir over two levels    equal            at most once
:func:`quantity_skew`                equal                  Dir(alpha)       once
:func:`exponential`                  equal                  exponential      once
:func:`log_normal`                   equal                  log-normal       once
:func:`proportional`                 equal                  as weighted      once
:func:`pfllib_dirichlet`             Dir(alpha) / class     ragged, capped   once
:func:`pfllib_pathological`          k classes              ragged or equal  once**
:func:`pfllib_extended_dirichlet`    Dir, k classes         ragged, capped   once
:func:`by_group`                     as in the source       as in source     once
===================================  =====================  ===============  ====================

(*) ``method="shards"``: equal when the classes have equal sizes; ``"pairs"``: always.
(**) except for classes that come after all clients have k classes.

:func:`train_test_split` and :func:`pfllib_split` give every client a test part, :func:`hold_out`
chooses clients that never train, and :mod:`fedjax_sim.data.feature_shift` changes the examples of
the clients instead of their labels.
"""

from fedjax_sim.data.partition.groups import by_group, hold_out, train_test_split
from fedjax_sim.data.partition.labels import classes_per_client, dirichlet, dirichlet_by_class
from fedjax_sim.data.partition.pachinko import pachinko
from fedjax_sim.data.partition.pfllib import (
    pfllib_dirichlet,
    pfllib_extended_dirichlet,
    pfllib_pathological,
    pfllib_split,
)
from fedjax_sim.data.partition.shards import label_quantity, shards
from fedjax_sim.data.partition.sizes import (
    exponential,
    iid,
    log_normal,
    proportional,
    quantity_skew,
)

__all__ = [
    "by_group",
    "classes_per_client",
    "dirichlet",
    "dirichlet_by_class",
    "exponential",
    "hold_out",
    "iid",
    "label_quantity",
    "log_normal",
    "pachinko",
    "pfllib_dirichlet",
    "pfllib_extended_dirichlet",
    "pfllib_pathological",
    "pfllib_split",
    "proportional",
    "quantity_skew",
    "shards",
    "train_test_split",
]
