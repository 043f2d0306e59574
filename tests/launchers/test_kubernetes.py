"""Kubernetes resources against a schema of what the published definitions take, and their commands run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from planner.cluster.spec import ClusterSpec
from planner.plan.values import Offload, Plan
from tests.launchers.stand_ins import TORCHRUN, folder_of, journal, run
from tests.worlds import cluster, group, nic, plan, pool

TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 1}


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """A mapping with these keys and no other."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(entry: dict[str, Any]) -> dict[str, Any]:
    """A list of at least one entry."""
    return {"type": "array", "minItems": 1, "items": entry}


LIMITS = {"type": "object", "additionalProperties": COUNT, "required": ["nvidia.com/gpu"]}
CONTAINER = closed(
    {
        "name": {"const": "pytorch"},
        "image": TEXT,
        "command": listed(TEXT),
        "resources": closed({"limits": LIMITS}),
    },
    {
        "args": listed(TEXT),
        "env": listed(closed({"name": TEXT, "value": {"type": "string"}})),
        "securityContext": closed({"capabilities": closed({"add": listed(TEXT)})}),
        "volumeMounts": listed(closed({"name": NAME, "mountPath": TEXT})),
        "workingDir": TEXT,
    },
)
VOLUME = {
    "oneOf": [
        closed({"name": NAME, "persistentVolumeClaim": closed({"claimName": NAME})}),
        closed({"name": NAME, "emptyDir": closed({"medium": {"const": "Memory"}})}),
        closed({"name": NAME, "hostPath": closed({"path": TEXT, "type": {"const": "Directory"}})}),
    ]
}
TERM = closed({"key": TEXT, "operator": {"enum": ["In", "NotIn", "Exists"]}, "values": listed(TEXT)})
TERMS = closed({"nodeSelectorTerms": listed(closed({"matchExpressions": listed(TERM)}))})
AFFINITY = closed({"nodeAffinity": closed({"requiredDuringSchedulingIgnoredDuringExecution": TERMS})})
POD = closed(
    {"containers": listed(CONTAINER)},
    {
        "affinity": AFFINITY,
        "dnsPolicy": {"enum": ["ClusterFirst", "ClusterFirstWithHostNet"]},
        "hostNetwork": {"type": "boolean"},
        "restartPolicy": {"enum": ["Never", "OnFailure"]},
        "volumes": listed(VOLUME),
    },
)
TEMPLATE = closed({"spec": POD})
REPLICA = {
    "replicas": COUNT,
    "template": TEMPLATE,
    "restartPolicy": {"enum": ["Never", "OnFailure", "Always"]},
}
PYTORCHJOB = closed(
    {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "PyTorchJob"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "pytorchReplicaSpecs": closed(
                    {"Master": closed({**REPLICA, "replicas": {"const": 1}})}, {"Worker": closed(REPLICA)}
                )
            },
            {"runPolicy": closed({}, {"backoffLimit": {"type": "integer"}, "cleanPodPolicy": TEXT})},
        ),
    }
)
"""After kubeflow.org_pytorchjobs.yaml and its validation: Master (one) and Worker only, a container ``pytorch``."""
BATCH_JOB = closed(
    {"template": TEMPLATE},
    {
        "backoffLimit": {"type": "integer"},
        "completionMode": {"enum": ["Indexed", "NonIndexed"]},
        "completions": COUNT,
        "parallelism": COUNT,
    },
)
JOBSET = closed(
    {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "replicatedJobs": listed(
                    closed({"name": NAME, "replicas": COUNT, "template": closed({"spec": BATCH_JOB})})
                )
            },
            {
                "failurePolicy": closed({"maxRestarts": {"type": "integer", "minimum": 0}}),
                "network": closed({}, {"enableDNSHostnames": {"type": "boolean"}, "subdomain": NAME}),
            },
        ),
    }
)
"""After jobset.x-k8s.io_jobsets.yaml, v1alpha2."""


def resource(folder: Path, name: str, schema: dict[str, Any]) -> Any:
    """The resource, checked."""
    found = yaml.safe_load((folder / name).read_text())
    jsonschema.validate(found, schema)
    return found


def start(tmp_path: Path, folder: Path, pod: dict[str, Any], **environment: str) -> None:
    """Run a pod's command here, with its environment."""
    container = pod["containers"][0]
    given = {entry["name"]: entry["value"] for entry in container.get("env", [])}
    command = [*container["command"], *container["args"], "--steps", "5"]
    done = run(tmp_path, {"torchrun": TORCHRUN}, command, folder, **given, **environment)
    assert done.returncode == 0, done.stderr


def two_pools() -> tuple[Plan, ClusterSpec]:
    """One node of a pool, two of another, on InfiniBand."""
    small = pool("small", ("T4",) * 2, 2, (nic("ib", "ib0", "mlx5_0"),))
    where = cluster(pool("Big_1", ("A100-SXM-80GB",) * 4, 1, (nic("ib", "ib0", "mlx5_0"),)), small)
    return plan(
        "deepspeed",
        1,
        [4],
        [(group("Big_1", "A100-SXM-80GB", count=4, share=2), group("small", "T4", count=4))],
    ), where


def test_pytorchjob_with_one_spec_for_each_pool(tmp_path: Path) -> None:
    """A single first node and one other pool are a Master and Workers."""
    folder = folder_of(tmp_path, "kubernetes", *two_pools())
    assert not (folder / "jobset.yaml").exists()
    specs = resource(folder, "pytorchjob.yaml", PYTORCHJOB)["spec"]["pytorchReplicaSpecs"]
    assert (specs["Master"]["replicas"], specs["Worker"]["replicas"]) == (1, 2)
    limits = [specs[kind]["template"]["spec"]["containers"][0]["resources"]["limits"] for kind in specs]
    assert limits == [{"nvidia.com/gpu": 4}, {"nvidia.com/gpu": 2}]
    products = [selected(specs[kind]["template"]["spec"]) for kind in specs]
    assert products == [
        ("nvidia.com/gpu.product", ["NVIDIA-A100-SXM4-80GB"]),
        ("nvidia.com/gpu.product", ["Tesla-T4", "NVIDIA-T4"]),
    ]
    text = (folder / "pytorchjob.yaml").read_text()
    assert text.count("# rdma/hca: 1\n") == 2
    assert (
        "yaml` is a PyTorchJob and needs Kubeflow's training operator" in (folder / "README.md").read_text()
    )


def selected(pod: dict[str, Any]) -> tuple[str, list[str]]:
    """The node label and its values."""
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term = required["nodeSelectorTerms"][0]["matchExpressions"][0]
    return term["key"], term["values"]


def test_pods_of_a_pytorchjob_take_the_planned_ranks(tmp_path: Path) -> None:
    """The operator's RANK of a pod is its place among the nodes."""
    folder = folder_of(tmp_path, "kubernetes", *two_pools())
    specs = resource(folder, "pytorchjob.yaml", PYTORCHJOB)["spec"]["pytorchReplicaSpecs"]
    operator = {"MASTER_ADDR": "tiny-master-0", "MASTER_PORT": "23456"}
    for rank, kind in enumerate(("Master", "Worker", "Worker")):
        start(tmp_path, folder, specs[kind]["template"]["spec"], RANK=str(rank), **operator)
    started = journal(tmp_path)
    assert [(entry["node"], entry["pool"]) for entry in started] == [
        ("0", "Big_1"),
        ("1", "small"),
        ("2", "small"),
    ]
    assert {entry["master"] for entry in started} == {"tiny-master-0:23456"}
    assert started[0]["arguments"].endswith("train.py --steps 5")


def test_jobset_where_a_pytorchjob_has_too_few_specs(tmp_path: Path) -> None:
    """Two nodes of the first pool and one of another are two jobs, reached by stable names."""
    folder = folder_of(tmp_path, "kubernetes")
    jobs = resource(folder, "jobset.yaml", JOBSET)["spec"]["replicatedJobs"]
    assert [(job["name"], job["template"]["spec"]["completions"]) for job in jobs] == [
        ("big", 2),
        ("small", 1),
    ]
    for job in jobs:
        for index in range(job["template"]["spec"]["completions"]):
            pod = job["template"]["spec"]["template"]["spec"]
            start(tmp_path, folder, pod, JOB_COMPLETION_INDEX=str(index))
    started = journal(tmp_path)
    assert [(entry["node"], entry["pool"]) for entry in started] == [
        ("0", "big"),
        ("1", "big"),
        ("2", "small"),
    ]
    assert {entry["master"] for entry in started} == {"tiny-big-0-0.tiny:29500"}
    assert "jobset.yaml` is a JobSet" in (folder / "README.md").read_text()


def test_one_pool_is_a_pytorchjob(tmp_path: Path) -> None:
    """Its first node is the Master; a node alone has no Workers."""
    where = cluster(pool("a", ("T4",), 3))
    for count, kinds in ((3, {"Master", "Worker"}), (1, {"Master"})):
        place = tmp_path / str(count)
        place.mkdir()
        chosen = plan("deepspeed", 0, [4], [(group("a", "T4", count=count),)])
        found = resource(folder_of(place, "kubernetes", chosen, where), "pytorchjob.yaml", PYTORCHJOB)
        assert set(found["spec"]["pytorchReplicaSpecs"]) == kinds


def test_one_pool_is_a_trainjob_too(tmp_path: Path) -> None:
    """A TrainingRuntime with one kind of pod and a TrainJob that refers to it; pods take the planned ranks.

    Its keys were all known to the models of kubeflow-trainer-api 2.3.0.
    """
    where = cluster(pool("a", ("T4",), 3))
    chosen = plan("deepspeed", 0, [4], [(group("a", "T4", count=3),)])
    folder = folder_of(tmp_path, "kubernetes", chosen, where)
    runtime, job = yaml.safe_load_all((folder / "trainjob.yaml").read_text())
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"] == {"numNodes": 3} == runtime["spec"]["mlPolicy"]
    (nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert nodes["name"] == "node"
    pod = nodes["template"]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["node"]
    for index in range(3):
        start(tmp_path, folder, pod, JOB_COMPLETION_INDEX=str(index))
    assert [entry["node"] for entry in journal(tmp_path)] == ["0", "1", "2"]
    assert {entry["master"] for entry in journal(tmp_path)} == {"tiny-node-0-0.tiny:29500"}
    assert "kubectl apply -f trainjob.yaml" in (folder / "README.md").read_text()


def test_nodes_without_a_known_product_are_named(tmp_path: Path) -> None:
    """A node of two device types has no product label that could be relied on."""
    where = cluster(pool("a", ("T4", "A100-SXM-80GB"), 1))
    chosen = plan("deepspeed", 0, [4], [(group("a", "T4"),)])
    folder = folder_of(tmp_path, "kubernetes", chosen, where)
    found = resource(folder, "pytorchjob.yaml", PYTORCHJOB)["spec"]["pytorchReplicaSpecs"]["Master"]
    assert selected(found["template"]["spec"]) == ("kubernetes.io/hostname", ["a-0"])
    assert "# EDIT: no product label tells these nodes" in (folder / "pytorchjob.yaml").read_text()


def test_nodes_of_two_pools_with_one_product_are_named(tmp_path: Path) -> None:
    """A label would give pods of one pool nodes of the other, with its network and number of devices."""
    cards = {
        "a": nic("ib", "ib0", "mlx5_0"),
        "b": nic("roce", "eth0", "mlx5_0"),
        "c": nic("ib", "ib0", "mlx5_0"),
    }
    types = {"a": "A100-SXM-80GB", "b": "A100-SXM-80GB", "c": "T4"}
    where = cluster(*(pool(name, (types[name],), 2, (cards[name],)) for name in "abc"))
    chosen = plan("deepspeed", 0, [8], [(group("b", types["b"], count=2), group("c", "T4", count=2))])
    folder = folder_of(tmp_path, "kubernetes", chosen, where)
    jobs = resource(folder, "jobset.yaml", JOBSET)["spec"]["replicatedJobs"]
    assert [selected(job["template"]["spec"]["template"]["spec"]) for job in jobs] == [
        ("kubernetes.io/hostname", ["b-0", "b-1"]),
        ("nvidia.com/gpu.product", ["Tesla-T4", "NVIDIA-T4"]),
    ]


def test_names_of_pools_stay_apart(tmp_path: Path) -> None:
    """Pools whose names differ in their signs only are two jobs."""
    where = cluster(*(pool(name, ("T4",), 2) for name in ("a_1", "a-1", "9")))
    chosen = plan("deepspeed", 0, [4], [tuple(group(name, "T4", count=2) for name in ("a_1", "a-1", "9"))])
    found = resource(folder_of(tmp_path, "kubernetes", chosen, where), "jobset.yaml", JOBSET)
    assert [job["name"] for job in found["spec"]["replicatedJobs"]] == ["a-1", "a-1-1", "pool-9"]


def test_pods_see_the_nvme_of_their_node(tmp_path: Path) -> None:
    """At the path that they know it by; plans that keep nothing there mount nothing."""
    where = cluster(pool("a", ("T4",), 2))
    chosen = plan("deepspeed", 3, [4], [(group("a", "T4", count=2),)], offload=Offload(optimizer="nvme"))
    folder = folder_of(tmp_path, "kubernetes", chosen, where)
    specs = resource(folder, "pytorchjob.yaml", PYTORCHJOB)["spec"]["pytorchReplicaSpecs"]
    for one in specs.values():
        pod = one["template"]["spec"]
        volume = next(each for each in pod["volumes"] if "hostPath" in each)
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert {"name": "NVME_PATH", "value": mounts[volume["name"]]} in pod["containers"][0]["env"]
    assert "folder on the NVMe of each pool" in (folder / "README.md").read_text()
    plain = folder_of(tmp_path / "plain", "kubernetes")
    assert "nvme" not in (plain / "jobset.yaml").read_text()


@pytest.mark.parametrize("break_it", ["a third kind of replica", "no image"])
def test_the_schema_can_refuse(tmp_path: Path, break_it: str) -> None:
    """What the operator refuses, the schema does."""
    found = resource(folder_of(tmp_path, "kubernetes", *two_pools()), "pytorchjob.yaml", PYTORCHJOB)
    specs = found["spec"]["pytorchReplicaSpecs"]
    if break_it == "no image":
        del specs["Worker"]["template"]["spec"]["containers"][0]["image"]
    else:
        specs["small"] = specs["Worker"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, PYTORCHJOB)
