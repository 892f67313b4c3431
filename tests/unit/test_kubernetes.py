"""The manifests of deploy/kubernetes are valid, and agree with the configuration in them."""

import copy
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from kubernetes_validate.utils import all_versions

from rlmm_daemon import __version__
from rlmm_daemon.cli import main
from rlmm_daemon.config import Config, KafkaLog
from rlmm_daemon.config.loading import load, load_reconcile
from rlmm_daemon.config.remote_storage import S3Storage
from tests.support.daemon_process import REPOSITORY
from tests.support.kubernetes import HOME, configuration, manifests, named, resources

#: The oldest whose claims are ReadWriteOncePod and whose pods are told their index, and the newest.
VERSIONS = ["1.29", all_versions()[-1]]
#: Kinds that no Kubernetes brings.
FOREIGN = {"Kustomization", "PodMonitor"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The daemon's, as the last pod's container reads it."""
    arguments = container("rlmm")["args"]
    assert arguments[:3] == ["run", "--config", "/etc/rlmm/rlmm.toml"]
    sets = [each.replace("$(POD_INDEX)", "2") for each in arguments[3:] if each != "--set"]
    return load(configuration(tmp_path), sets)


def pod() -> dict[str, Any]:
    found: dict[str, Any] = named("StatefulSet", "kafka")["spec"]["template"]["spec"]
    return found


def nightly() -> dict[str, Any]:
    job = named("CronJob", "rlmm-reconcile")["spec"]["jobTemplate"]["spec"]
    found: dict[str, Any] = job["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any]
    [found] = [each for each in pod()["containers"] if each["name"] == name]
    return found


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        (each["name"], each, spec)
        for spec in (pod(), nightly())
        for each in (*spec.get("initContainers", ()), *spec["containers"])
    ]


def mount(of: dict[str, Any], path: str) -> dict[str, Any]:
    """The mount below which a path lies, the innermost."""
    found = [
        each
        for each in of["volumeMounts"]
        if Path(each["mountPath"]) in (Path(path), *Path(path).parents)
    ]
    assert found, f"{path} is on no volume"
    longest: dict[str, Any] = max(found, key=lambda each: len(each["mountPath"]))
    return longest


def properties(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def brokers() -> dict[str, str]:
    return properties(named("ConfigMap", "kafka")["data"]["server.properties"])


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_valid_for_the_oldest_and_the_newest_kubernetes(version):
    for file in manifests():
        for each in resources(file):
            if each["kind"] not in FOREIGN:
                kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_there_is_not_is_noticed():
    wrong = copy.deepcopy(named("StatefulSet", "kafka"))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_kustomize_takes_every_manifest_and_this_version():
    [kustomization] = resources(HOME / "kustomization.yaml")
    there = {each.name for each in HOME.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == there
    assert {each["newTag"] for each in kustomization["images"]} == {__version__}
    ours = {each["image"] for _, each, _ in containers()} - {container("kafka")["image"]}
    assert {each["name"] for each in kustomization["images"]} == ours


def test_no_secret_is_in_them():
    kinds = {each["kind"] for file in manifests() for each in resources(file)}
    assert "Secret" not in kinds


def test_check_config_takes_the_configuration_as_it_is_and_as_a_pod_is_told(tmp_path):
    file = configuration(tmp_path)
    for arguments in ([], ["--set", "daemon.broker_id=2"]):
        checked = CliRunner().invoke(main, ["check-config", *arguments, str(file)])
        assert checked.exit_code == 0, checked.output


def test_the_nightly_jobs_configuration_is_one(tmp_path):
    configuration(tmp_path)
    assert load_reconcile(tmp_path / "reconcile.toml").daemon_config == "/etc/rlmm/rlmm.toml"
    [job] = nightly()["containers"]
    assert "--config /etc/rlmm/reconcile.toml" in job["command"][-1]
    assert mount(job, "/etc/rlmm/reconcile.toml")["name"] == "rlmm"
    assert mount(job, "/var/lib/rlmm/reconcile")["name"] == "reports"


@pytest.mark.parametrize(("ended", "told"), [(0, 0), (1, 0), (4, 4), (5, 5)])
def test_findings_are_an_answer_and_every_other_end_of_a_night_is_a_failure(tmp_path, ended, told):
    (tmp_path / "rlmm").write_text(f"#!/bin/sh\nexit {ended}\n")
    (tmp_path / "rlmm").chmod(0o755)
    [job] = nightly()["containers"]
    done = subprocess.run(
        job["command"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=30, check=False
    )
    assert done.returncode == told


def test_a_pods_daemon_is_its_brokers(config):
    assert config.daemon.broker_id == 2
    assert 'echo "node.id=$POD_INDEX"' in container("kafka")["command"][-1]
    for each in ("rlmm", "kafka"):
        [index] = [env for env in container(each)["env"] if env["name"] == "POD_INDEX"]
        path = index["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert named("ConfigMap", "kafka")["data"]["cluster-id"] == config.daemon.cluster_id


def test_daemon_and_broker_meet_at_one_socket_and_know_each_other(config):
    ours, brokers_own = container("rlmm"), container("kafka")
    for prefix in ("rlmm.config.", "rsm.config."):
        assert brokers()[f"{prefix}socket.path"] == config.socket.path
        assert brokers()[f"{prefix}daemon.user"] == str(ours["securityContext"]["runAsUser"])
    assert config.socket.rights.write.uids == (brokers_own["securityContext"]["runAsUser"],)
    assert mount(ours, config.socket.path) == mount(brokers_own, config.socket.path)


def test_the_daemon_reads_the_brokers_files_where_the_broker_has_them_and_writes_none(config):
    [directory] = config.daemon.log_dirs
    assert brokers()["log.dirs"] == directory
    ours, brokers_own = mount(container("rlmm"), directory), mount(container("kafka"), directory)
    assert ours == brokers_own | {"readOnly": True}
    assert "readOnly" not in brokers_own


def test_what_the_daemon_keeps_is_on_a_claim_and_what_it_reads_is_mounted(config):
    ours = container("rlmm")
    claims = {
        each["metadata"]["name"]
        for each in named("StatefulSet", "kafka")["spec"]["volumeClaimTemplates"]
    }
    assert mount(ours, config.daemon.state_dir)["name"] in claims
    assert mount(container("kafka"), brokers()["log.dirs"])["name"] in claims
    assert isinstance(config.storage, S3Storage)
    for of in (ours, *nightly()["containers"]):
        for secret in (config.storage.access_key_id_file, config.storage.secret_access_key_file):
            assert mount(of, str(secret))["name"] == "secrets"


def test_the_broker_says_all_that_it_has_to_say_beside_a_daemon():
    wanted = properties((REPOSITORY / "deploy" / "kafka" / "rlmm.properties").read_text())
    assert wanted.items() <= brokers().items()
    jar = wanted["remote.log.storage.manager.class.path"]
    assert mount(container("kafka"), jar)["name"] == "plugin"
    [copying] = pod()["initContainers"]
    assert copying["command"][:2] == ["cp", jar]
    assert mount(copying, copying["command"][2])["name"] == "plugin"
    assert copying["image"] == container("rlmm")["image"]


def test_the_daemon_and_the_brokers_find_the_brokers_by_name(config):
    stateful = named("StatefulSet", "kafka")
    service = named("Service", stateful["spec"]["serviceName"])
    pods = [
        f"{stateful['metadata']['name']}-{each}.{service['metadata']['name']}"
        for each in range(stateful["spec"]["replicas"])
    ]
    assert isinstance(config.event_log, KafkaLog)
    assert list(config.event_log.kafka.bootstrap) == [f"{each}:9092" for each in pods]
    voters = [f"{node}@{each}:9093" for node, each in enumerate(pods)]
    assert brokers()["controller.quorum.voters"] == ",".join(voters)
    assert service["spec"]["clusterIP"] == "None"


def test_ports_are_those_of_the_configuration(config):
    _, _, admin = config.admin.listen.rpartition(":")
    ports = {
        each["name"]: each["containerPort"] for of in pod()["containers"] for each in of["ports"]
    }
    listeners = dict(each.split("://:") for each in brokers()["listeners"].split(","))
    assert ports == {
        "admin": int(admin),
        "kafka": int(listeners["PLAINTEXT"]),
        "controller": int(listeners["CONTROLLER"]),
    }
    asked = [each["targetPort"] for each in named("Service", "kafka")["spec"]["ports"]]
    policy = named("NetworkPolicy", "kafka")["spec"]["ingress"]
    asked += [port["port"] for rule in policy for port in rule["ports"]]
    monitor = named("PodMonitor", "rlmm")["spec"]["podMetricsEndpoints"]
    asked += [each["port"] for each in monitor]
    assert set(asked) == set(ports)
    assert [each["path"] for each in monitor] == ["/metrics"]


def test_no_probe_of_the_daemon_takes_the_broker_down():
    ours = container("rlmm")
    assert "readinessProbe" not in ours
    for probe in (ours["startupProbe"], ours["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/healthz", "port": "admin"}
    # One among the init containers would be waited for.
    assert [each["name"] for each in pod()["initContainers"]] == ["plugin"]
    assert named("Service", "kafka")["spec"]["publishNotReadyAddresses"] is True
    assert named("StatefulSet", "kafka")["spec"]["podManagementPolicy"] == "Parallel"


def test_there_is_time_for_the_broker_and_then_for_the_drain(config):
    waits = re.search(
        r"\{1\.\.(\d+)\}", container("rlmm")["lifecycle"]["preStop"]["exec"]["command"][2]
    )
    assert waits is not None
    seconds = int(waits[1]) + config.daemon.drain_deadline_ms / 1000
    assert pod()["terminationGracePeriodSeconds"] >= seconds + 20


def test_before_it_stops_the_daemon_waits_for_as_long_as_the_broker_listens():
    [shell, option, told] = container("rlmm")["lifecycle"]["preStop"]["exec"]["command"]
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.settimeout(20)
        here = told.replace("/9092", f"/{broker.getsockname()[1]}")
        with subprocess.Popen([shell, option, here]) as waiting:
            try:
                for _ in range(2):  # it looks, and looks again
                    broker.accept()[0].close()
                assert waiting.poll() is None
                broker.close()
                assert waiting.wait(timeout=20) == 0
            finally:
                waiting.kill()


@pytest.mark.parametrize(("name", "of", "spec"), containers(), ids=lambda each: str(each)[:20])
def test_a_container_has_no_more_rights_than_it_needs(name, of, spec):
    own, whole = of["securityContext"], spec["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["runAsUser"] >= 1000
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False
    assert of["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in of["resources"]["limits"]
    volumes = {each["name"] for each in spec["volumes"]}
    if name in {"plugin", "rlmm", "kafka"}:
        claims = named("StatefulSet", "kafka")["spec"]["volumeClaimTemplates"]
        volumes |= {each["metadata"]["name"] for each in claims}
    assert {each["name"] for each in of["volumeMounts"]} <= volumes
