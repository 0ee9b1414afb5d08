"""Start a worker in any interpreter: ``python bootstrap.py MODULE:SERVICE``.

A runtime's environment holds its libraries but not Edgewise. This file puts the very package it
lies in before the interpreter, and nothing else of the place it was installed to, so that parent
and worker always run the same code.
"""

import importlib.util
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def _put_package() -> None:
    spec = importlib.util.spec_from_file_location(
        _PACKAGE.name, _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if _PACKAGE.name not in sys.modules:
        _put_package()
    from edgewise.runtimes.host import main

    main(sys.argv)
