"""References ``MODULE:FUNCTION`` to the user's own functions, and rows of other packages.

An option that takes a name also takes a reference.  Modules of the current directory can be
imported.  A reference is loaded once, when options become objects; after that only objects are
passed on.  Files name no code: a reference in a ``config.json`` or a table of points is refused,
see :func:`fedjax_sim.studies.setups.config_file.read`.  Each kind of function has a contract.
Parameters marked * are passed by name, and a function leaves out those that it does not need.

=============  =====================================================  ==========================
option         parameters                                             result
=============  =====================================================  ==========================
--algorithms   its hyper-parameters: numbers, names and flags         ``fedjax_sim.FedAlgorithm``
--model        * shape, num_classes (and rngs, for flax nnx)          ``models.Model``, or a flax
                                                                      module
--dataset      * data_dir                                             ``datasets.Dataset``
--partition    * dataset, num_clients, seed, alpha                    row numbers per client, or
                                                                      these and the names
--loss         outputs, y                                             losses ``[B]``
--metrics      outputs, y                                             ``{name: values [B]}``
--sampling     * key, rounds, sizes, num_clients, cohort_size,        ``fedjax_sim.Timeline``,
               num_steps                                              inside ``jax.jit``
--timeline     as --sampling                                          as --sampling, outside jit
=============  =====================================================  ==========================

``shape`` is that of one example, ``sizes`` has the number of examples per client, ``num_steps`` the
number of local steps per client.

A package adds rows to ``fedjax-sim list`` by entry points: the groups ``fedjax_sim.algorithms``,
``fedjax_sim.models``, ``fedjax_sim.datasets`` and ``fedjax_sim.partitions`` hold functions with
these contracts.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jax

from fedjax_sim.checks import did_you_mean

_SEVERAL = ("algorithms",)  # options with several values
# Options that name one function.
FUNCTIONS = ("dataset", "model", "partition", "sampling", "timeline", "loss", "metrics")


class EntryPointWarning(UserWarning):
    """A row of another package that cannot be loaded."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A function of the user's, with the words that errors about it begin with."""

    option: str
    text: str  # MODULE:FUNCTION, or the name of an entry point
    function: Callable[..., Any]

    def fail(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        """Raises a ValueError, see :func:`fail`."""
        fail(self.option, self.text, problem, cause)

    def call(self, *args: Any, **named: Any) -> Any:
        """Calls the function; an error in it becomes one line that names the place.

        Example:
            >>> Reference("model", "mine:net", lambda shape: 1 / 0).call((3,))
            Traceback (most recent call last):
            ValueError: model is 'mine:net', which raised ZeroDivisionError: division by ...
        """
        try:
            return self.function(*args, **named)
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            place = _place(error, self.function)
            self.fail(f"which raised {type(error).__name__}: {line}{place}", error)

    def call_by_name(self, **available: Any) -> Any:
        """Calls the function with those of the arguments that it takes.

        Raises:
            ValueError: a required parameter that is none of them, or an error in the function.

        Example:
            >>> row = Reference("model", "mine:net", lambda shape: ("a model for", shape))
            >>> row.call_by_name(shape=(8, 8, 1), num_classes=10)
            ('a model for', (8, 8, 1))
        """
        parameters = self.parameters()
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return self.call(**available)
        for name, parameter in parameters.items():
            required = parameter.default is parameter.empty and parameter.kind is not (
                parameter.VAR_POSITIONAL
            )
            if required and (name not in available or parameter.kind is parameter.POSITIONAL_ONLY):
                self.fail(
                    f"whose parameter {name!r} is unknown; expected parameters among "
                    f"{', '.join(available)}{did_you_mean(name, available)}"
                )
        return self.call(**{name: available[name] for name in available if name in parameters})

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Returns the parameters of the function, annotations as objects where possible."""
        target = self.function
        if inspect.isclass(target):  # the signature of flax classes is that of their metaclass
            target = functools.partial(target.__init__, None)
        for eval_str in (True, False):
            try:
                return dict(inspect.signature(target, eval_str=eval_str).parameters)
            except (NameError, AttributeError, SyntaxError):  # of annotations
                continue
            except (ValueError, TypeError) as error:  # of some functions in C
                self.fail(f"whose parameters are not known: {error}", error)
        return {}

    def check_result(self, value: Any, kind: type | tuple[type, ...], expected: str) -> Any:
        """Returns the function's result if it has the type.

        Raises:
            ValueError: another type.
        """
        if not isinstance(value, kind):
            self.fail(f"which returned {_type_of(value)}; expected {expected}")
        return value


def fail(option: str, text: str, problem: str, cause: BaseException | None = None) -> NoReturn:
    """Raises a ValueError that names the option, the reference and the problem."""
    verb = "has" if option in _SEVERAL else "is"
    raise ValueError(f"{option} {verb} {text!r}, {problem}") from cause


def is_reference(name: str) -> bool:
    """Returns True for ``MODULE:FUNCTION``.

    Example:
        >>> is_reference("my_module:net"), is_reference("mlp")
        (True, False)
    """
    return ":" in name


def find(option: str, name: str, known: Iterable[str], group: str | None = None) -> Reference:
    """Returns the function behind a name that is not built in.

    Args:
        option: field of the configuration, with which errors begin.
        name: ``MODULE:FUNCTION``, or the name of an entry point.
        known: built-in names, for the error.
        group: group of entry points without the prefix ``fedjax_sim.``, such as ``models``.

    Raises:
        ValueError: an unknown name, a module or function that cannot be loaded.

    Example:
        >>> find("model", "mpl", ["mlp", "vgg11"])
        Traceback (most recent call last):
        ValueError: model is 'mpl'; expected one of mlp, vgg11, or MODULE:FUNCTION; did you mean ...
    """
    if is_reference(name):
        return load(option, name)
    others = {} if group is None else entry_points(group)
    if name in others:
        try:
            return _checked(Reference(option, name, others[name].load()))
        except ValueError:
            raise
        except Exception as error:
            problem = f"an entry point of {others[name].value} that cannot be loaded: {error!r}"
            fail(option, name, problem, error)
    names = [*known, *others]
    verb, count = ("has", "some") if option in _SEVERAL else ("is", "one")
    raise ValueError(
        f"{option} {verb} {name!r}; expected {count} of {', '.join(names)}, or MODULE:FUNCTION"
        f"{did_you_mean(name, names)}"
    )


def load(option: str, text: str) -> Reference:
    """Returns the function that ``MODULE:FUNCTION`` names.

    Raises:
        ValueError: text of another form, no such module or function, a module that cannot be
            imported, or an object that is not callable.

    Example:
        >>> load("loss", "optax:l2_loss").text
        'optax:l2_loss'
        >>> load("loss", "optax:l3_loss")
        Traceback (most recent call last):
        ValueError: loss is 'optax:l3_loss', but optax has no function l3_loss; did you mean l2_...
    """
    module_name, _, path = text.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        fail(option, text, "which names no function; expected MODULE:FUNCTION, as my_module:net")
    target: Any = _module(option, text, module_name)
    where = module_name
    for part in path.split("."):
        if not hasattr(target, part):
            names = [name for name in dir(target) if not name.startswith("_")]
            problem = f"but {where} has no function {part}{did_you_mean(part, names)}"
            fail(option, text, problem)
        target, where = getattr(target, part), f"{where}.{part}"
    return _checked(Reference(option, text, target))


@functools.cache
def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of a group, such as ``models``, by name; loads nothing.

    Example:
        >>> entry_points("models")
        {}
    """
    return {point.name: point for point in importlib.metadata.entry_points(group=_GROUP + group)}


def installed(option: str, group: str, known: Iterable[str]) -> dict[str, Reference]:
    """Returns the rows of other packages by name; one that cannot be loaded gives a warning.

    Args:
        option: field of the configuration.
        group: as for :func:`find`.
        known: built-in names, which precede.
    """
    built_in, rows = set(known), {}
    for name, point in entry_points(group).items():
        problem = "a built-in name" if name in built_in else ""
        if not problem:
            try:
                rows[name] = _checked(Reference(option, name, point.load()))
                continue
            except Exception as error:
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"entry point {name} = {point.value} of {_GROUP}{group} is left out: {problem}",
            EntryPointWarning,
            stacklevel=2,
        )
    return rows


_GROUP = "fedjax_sim."


def _module(option: str, text: str, name: str) -> Any:
    """Imports a module of the current directory or an installed one."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        return importlib.import_module(name)
    except Exception as error:
        problem = f"but {name} cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            problem = f"but there is no module {error.name} in {here} or among installed packages"
        elif isinstance(error, SyntaxError):
            problem = f"but {error.filename}, line {error.lineno}: {error.msg}"
        fail(option, text, problem.splitlines()[0], error)


def _checked(reference: Reference) -> Reference:
    if not callable(reference.function):
        reference.fail(f"which is {_type_of(reference.function)}; expected a function")
    return reference


def _type_of(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, jax.ShapeDtypeStruct):  # of a function that was traced
        return f"an array of shape {value.shape}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _place(error: BaseException, function: Callable[..., Any]) -> str:
    """Returns the last line of the function's file that was running, as `` (file, line 3)``."""
    with contextlib.suppress(TypeError):
        file = inspect.getsourcefile(inspect.unwrap(function))
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        if frames:
            return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    return ""
