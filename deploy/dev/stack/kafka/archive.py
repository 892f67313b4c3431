"""Make a class-data archive of a broker: short-lived JVMs map it instead of loading each class.

    python -m deploy.dev.stack.kafka.archive

does so once for these jars and this JDK. A broker then starts with 60 % of the processor time, as
do Kafka's tools. Where there is none, everything works without.
"""  # noqa: INP001 - scripts, no package

import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import QUICK, Cluster

#: The node writes it while it ends.
_STOP_SECONDS: Final = 180.0
_MANAGER: Final = "remote.log"
_PACKAGE: Final = "org.apache.kafka.server.log.remote"


def make() -> bool:
    """Start and stop a broker that tiers by Kafka's own managers; return whether that gave one."""
    libs.fetched()
    target = libs.archive()
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlmm-archive-", dir=target.parent) as directory:
        partly = Path(directory) / target.name
        cluster = Cluster(directory=Path(directory) / "kafka")
        cluster.java_options = (*QUICK, f"-XX:ArchiveClassesAtExit={partly}")
        cluster.properties = {
            f"{_MANAGER}.storage.system.enable": "true",
            f"{_MANAGER}.metadata.manager.class.name": (
                f"{_PACKAGE}.metadata.storage.TopicBasedRemoteLogMetadataManager"
            ),
            f"{_MANAGER}.metadata.manager.listener.name": "PLAINTEXT",
            f"{_MANAGER}.storage.manager.class.name": f"{_PACKAGE}.storage.LocalTieredStorage",
            "rsm.config.dir": directory,
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.min.isr": "1",
        }
        try:
            cluster.start()
            cluster.stop(seconds=_STOP_SECONDS)
        finally:
            cluster.destroy()
        if partly.exists():
            partly.rename(target)
    return target.exists()


if __name__ == "__main__":
    print(libs.archive() if make() else "this JDK makes no archive: everything works without")  # noqa: T201 - that is the command's answer
    sys.exit(0)
