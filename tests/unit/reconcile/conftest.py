"""Without the extra [spark] (its Arrow) there is nothing of the job here: `make test-reconcile`."""

from importlib.util import find_spec

if find_spec("pyarrow") is None:
    collect_ignore_glob = ["*.py"]
