"""Study modules: Python files with a function ``study`` that returns a :class:`Study`."""

import importlib.util
import pathlib
import sys

from fedjax_sim.studies.setups.fields import replaced
from fedjax_sim.studies.setups.own_code import own_code
from fedjax_sim.studies.setups.presets import PRESETS
from fedjax_sim.studies.setups.study import Study


def load_study(path: pathlib.Path) -> Study:
    """Returns the study of a module; other modules of its folder can be imported."""
    if not path.is_file():
        raise ValueError(f"MODULE is '{path}', which does not exist; expected a study module (.py)")
    # With its suffix, so that a study.py or random.py replaces no other module.
    spec = importlib.util.spec_from_file_location(path.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[path.name] = module  # so that its classes can be found by name
    with own_code(f"MODULE is '{path}', which"):
        spec.loader.exec_module(module)
    function = getattr(module, "study", None)
    if not callable(function):
        raise ValueError(
            f"MODULE is '{path}', which has no function study(); expected one that returns a "
            "fedjax_sim.Study"
        )
    with own_code(f"MODULE is '{path}', whose study()"):
        result = function()
    if not isinstance(result, Study):
        raise ValueError(
            f"MODULE is '{path}', whose study() returned {type(result).__name__}; expected a "
            "fedjax_sim.Study"
        )
    of_presets = [preset.algorithms.algorithms for preset in PRESETS.values()]
    if not result.algorithms or result.options.algorithms.algorithms not in of_presets:
        return result
    # Its own algorithms are compared, unless its options or --algorithms name others.
    return result.replaced(options=replaced(result.options, "algorithms", tuple(result.algorithms)))
