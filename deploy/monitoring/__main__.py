"""Writer of the files that Prometheus and Grafana read: `make monitoring`."""

import sys

from deploy.monitoring.files import DIRECTORY, FILES

for name, made in FILES.items():
    (DIRECTORY / name).write_text(made())
sys.stdout.write(f"written: {', '.join(FILES)}\n")
