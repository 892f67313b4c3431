"""Members of a quorum for tests, and a stranger's authority."""

from pathlib import Path

from rlmm_daemon.adapters.quorum.authentication.principals import Principal
from rlmm_daemon.adapters.quorum.authentication.tls import MutualTls, TlsOptions
from tests.unit.adapters.quorum.certificates import Authority
from tests.unit.adapters.quorum.three import CLUSTER

Files = tuple[Path, Path]


class Members:
    """Three nodes, an observer, and two operators of whom one may change the voters."""

    def __init__(self, directory: Path) -> None:
        self.ours = Authority(directory / "ours")
        self.theirs = Authority(directory / "theirs")
        self.nodes = {node_id: self.ours.sign(f"{node_id}") for node_id in (1, 2, 3, 9)}
        self.alice = self.ours.sign("operator/alice")
        self.bob = self.ours.sign("operator/bob")
        self.expired = self.ours.sign("1", expired=True)

    def options(self, files: Files, **more) -> TlsOptions:
        return TlsOptions(
            **{
                "cluster_id": CLUSTER,
                "ca_file": str(self.ours.ca),
                "certificate_file": str(files[0]),
                "key_file": str(files[1]),
                "voter_changers": frozenset({"alice"}),
            }
            | more
        )

    def tls(self, files: Files, **more) -> MutualTls:
        return MutualTls(self.options(files, **more))

    def side(self, node_id: int) -> tuple[MutualTls, MutualTls]:
        tls = self.tls(self.nodes[node_id], member=Principal(node=node_id))
        return tls, tls
