"""Megatron-LM: its arguments, and each process group's network where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from planner.cluster.spec import ClusterSpec
from planner.dims.expert import overlaps
from planner.errors import EmitError
from planner.job.files import EmittedFile, launch_files, node_file, number_format
from planner.job.job import Job, JobNetwork
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, in_fewest_runs, ranks
from planner.plan.values import Plan
from planner.runtimes.interface import Checkout, Runtime
from planner.runtimes.megatron.arguments import (
    arguments,
    arguments_script,
    differences,
    dispatcher_of,
    layout,
    without_multicast,
)
from planner.runtimes.megatron.capabilities import CAPABILITIES
from planner.runtimes.megatron.log import MegatronLines
from planner.runtimes.megatron.numerics import placeless, unsaid

REPLICAS = ("dp", "dp_cp", "intra_dp_cp", "gtp_remat_dp", "gtp_remat_dp_cp", "ep_dp", "intra_ep_dp")
"""Groups over the replicas of one stage."""
REPLICA = ("tp", "tp_cp", "ep_tp")
"""Groups over the devices of one replica."""
STAGES = ("pp", "embd")
"""Groups over the stages of one pipeline."""
STAGE_DEVICES = ("tp_dp_cp", "tp_dp")
"""Groups over all devices of one stage."""
PIPELINE_DEVICES = ("mp", "tp_ep_mp", "tp_ep_pp", "tp_ep_gtp_remat_pp")
"""Groups over all devices of one pipeline."""
CONTEXT = ("cp", "tp_cp")
"""Groups over the devices that share sequences."""
EXPERTS = ("ep", "tp_ep")
"""Groups over the devices that share the experts of a layer."""
ALL_DEVICES = ("intra_dist_opt_instance",)
"""Groups over all devices of the job."""

Members = frozenset[str]
"""Pools that have members in one process group spanning several nodes."""


def group_networks(
    ranks: Sequence[Rank], network: JobNetwork, expert_ways: int = 1, cp: int = 1
) -> dict[str, str]:
    """Text of each pool's network file; empty when one network has to serve all groups of the job.

    That is so when all nodes share an RDMA fabric, when none has one, and when no group could use it.
    """
    if not network.crosses:
        return {}
    kinds: tuple[tuple[tuple[str, ...], set[Members]], ...] = (
        (REPLICA[: 1 if cp > 1 else 3], _instances(ranks, lambda rank: (rank.stage, rank.replica))),
        (REPLICAS, _instances(ranks, lambda rank: (rank.stage, rank.tp_rank))),
        (STAGES, _instances(ranks, lambda rank: (rank.replica, rank.tp_rank))),
        (STAGE_DEVICES, _instances(ranks, lambda rank: rank.stage)),
        (PIPELINE_DEVICES, _instances(ranks, lambda rank: rank.replica)),
        (ALL_DEVICES, _instances(ranks, lambda rank: None)),
    )
    if cp > 1:
        sharing = _instances(ranks, lambda rank: (rank.stage, rank.replica // cp))
        kinds = (*kinds, (CONTEXT, sharing))
    if expert_ways > 1:
        width = 1 + max(rank.tp_rank for rank in ranks)
        experts = _instances(
            ranks, lambda rank: (rank.stage, (rank.replica * width + rank.tp_rank) // expert_ways)
        )
        kinds = (*kinds, (EXPERTS, experts))
    choices = [(names, _choose(instances, network)) for names, instances in kinds]
    if not any("IB" in choice.values() for _, choice in choices):
        return {}
    # Megatron knows no other names of networks than these two; where it gives none, NCCL takes the plugin's.
    return {
        pool: _text(
            {
                name: choice[pool]
                for names, choice in choices
                if pool in choice and not (choice[pool] == "IB" and pool in network.plugins)
                for name in names
            }
        )
        for pool in network.rdma
    }


def _instances(ranks: Iterable[Rank], key: Callable[[Rank], Hashable]) -> set[Members]:
    """The groups of one type that span several nodes, by the pools in them."""
    hosts: dict[Hashable, set[str]] = defaultdict(set)
    pools: dict[Hashable, set[str]] = defaultdict(set)
    for rank in ranks:
        hosts[key(rank)].add(rank.host)
        pools[key(rank)].add(rank.pool)
    return {frozenset(pools[group]) for group in pools if len(hosts[group]) > 1}


def _choose(instances: set[Members], network: JobNetwork) -> dict[str, str]:
    """``IB`` or ``Socket`` for each pool in a group: sockets spread to all pools that meet in groups."""
    sockets = {pool for members in instances for pool in members if not _share_rdma(members, network)}
    while True:
        spread = {pool for members in instances if members & sockets for pool in members}
        if spread <= sockets:
            break
        sockets |= spread
    met = {pool for members in instances for pool in members}
    return {pool: "Socket" if pool in sockets else "IB" for pool in sorted(met)}


def _share_rdma(members: Members, network: JobNetwork) -> bool:
    fabrics = {network.rdma[pool] for pool in members}
    return len(fabrics) == 1 and None not in fabrics


def _text(networks: dict[str, str]) -> str:
    return "".join(f"{name}:\n  net_name: {net}\n" for name, net in networks.items())


ENTRY = {"decoder": "pretrain_gpt.py", "encoder": "examples/bert/pretrain_bert.py"}
"""Megatron's training script of each kind of model, relative to its checkout."""
STACK_ENTRY = "pretrain_hybrid.py"
"""That of decoders whose mixers and feed-forwards stand on their own."""

PROLOGUE = """\
  : "${MEGATRON_PATH:?set MEGATRON_PATH to a checkout of Megatron-LM}"
  export PYTHONPATH="$MEGATRON_PATH${PYTHONPATH:+:$PYTHONPATH}"
"""
SOURCED = """\
  # shellcheck disable=SC1091
  source ./args.sh"""


def queues(job: Job) -> str:
    """How many queues of kernels a device has.

    One, by which Megatron orders the kernels of tensor parallelism; many where all-to-alls run beside computation, as
    in the recipes of Megatron Bridge.
    """
    if overlaps(job.model, job.plan.folding):
        what, number = "All-to-alls of experts run beside computation, each in a queue of kernels.", 32
    else:
        what, number = "Megatron orders the kernels of tensor parallelism by this before Blackwell.", 1
    return f"  # {what}\n  export CUDA_DEVICE_MAX_CONNECTIONS={number}\n"


def _copied_by_memory(job: Job) -> str:
    """Shell lines for the nodes whose devices have no multicast for user buffers."""
    pools = without_multicast(job)
    if not pools:
        return ""
    return (
        "  # For --tp-comm-overlap TransformerEngine takes CUDA's multicast, which these pools' devices do not have.\n"
        f'  case "$pool" in {"|".join(pools)}) export UB_SKIPMC=1 ;; esac\n'
    )


def started(job: Job, prologue: str, entry: str, words: str, network: str) -> tuple[EmittedFile, ...]:
    """The start of a script with words of ``args.sh``, and each process group's network; ``network`` names its file."""
    networks = group_networks(job.ranks, job.network, job.plan.folding.ways, job.plan.cp)
    given = [words, f'{network}"$PWD/nccl/$pool.yaml"'] if networks else [words]
    command = job.program(entry, *given)
    if networks:
        command = f"start_megatron.py {command}"
    tf32 = number_format(job.model.training.precision)
    before = f"{prologue}{_copied_by_memory(job)}{tf32}{tf32 and chr(10)}{SOURCED}"
    return (
        *launch_files(job, command, before, network_per_group=bool(networks)),
        *(EmittedFile(f"nccl/{pool}.yaml", text) for pool, text in networks.items()),
        *([node_file("planner.runtimes.megatron.start_megatron")] if networks else []),
    )


class Megatron(Runtime):
    """Trains by Megatron-LM's own script, from a checkout of the user's."""

    capabilities = CAPABILITIES
    checkout = Checkout(
        package=CAPABILITIES.name,
        distribution="megatron-core",
        variable="MEGATRON_PATH",
        title="Megatron-LM",
        version_file="megatron/core/package_info.py",
    )
    libraries: Mapping[str, str] = {"megatron-bridge": "bridge"}
    variables: tuple[str, ...] = ("MEGATRON_PATH", "TRAIN_ITERS", "LR", "CLIP_GRAD", "DATA_ARGS_FILE")

    @property
    def tried(self) -> Mapping[str, str]:
        """PyTorch and Megatron's core."""
        return {**super().tried, CAPABILITIES.name: CAPABILITIES.version.removeprefix("core ")}

    def ranks(self, plan: Plan, cluster: ClusterSpec) -> tuple[Rank, ...]:
        """The ranks in that of Megatron's two orders which needs fewer torchruns.

        The default order, replicas before stages, keeps nodes of one device type together; stages before
        replicas those whose device types hold different stages. The other order needs as many replicas of experts as
        of everything else, and has replicas that share sequences one after the other.
        """
        usual = ranks(plan, cluster)
        if plan.cp > 1 or plan.folding.ways not in (1, plan.stages[0].replicas[0].tp):
            return usual
        return in_fewest_runs(usual)

    def check(self, plan: Plan, model: ModelSpec) -> None:
        """Raise EmitError for a model that has no positions for all tokens of a sequence."""
        if 0 < model.learned_positions < model.training.sequence_length:
            raise EmitError("--max-position-embeddings must be at least --seq-length")

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The plan in Megatron's words, and the network of each process group."""
        script = EmittedFile("args.sh", arguments_script(arguments(job), job.model))
        name = STACK_ENTRY if job.model.stacked else ENTRY[job.model.kind]
        entry = f'"$MEGATRON_PATH/{name}"'
        words, network = '"${MEGATRON_ARGS[@]}"', "--nccl-communicator-config-path "
        return (script, *started(job, f"{PROLOGUE}{queues(job)}", entry, words, network))

    def notes(self, job: Job) -> Mapping[str, object]:
        """Where Megatron differs from the model file, and whether its groups have their own networks."""
        return {
            "layout": layout(job.plan, job.model),
            "differences": tuple(differences(job.model)),
            "unsaid": unsaid(job.model),
            "placeless": placeless(job.model),
            "overlaps": overlaps(job.model, job.plan.folding),
            "dispatcher": {"deepep": "DeepEP", "hybridep": "HybridEP"}.get(dispatcher_of(job)),
            "network_per_group": bool(
                group_networks(job.ranks, job.network, job.plan.folding.ways, job.plan.cp)
            ),
        }

    def log_reader(self, plan: Plan) -> MegatronLines:
        """Of its iteration lines, timers and memory reports."""
        return MegatronLines(plan.devices - 1)

    def how_to_time(self, plan: Plan) -> str:
        """By its own timers."""
        return "Megatron prints them with --timing-log-level 2"


RUNTIME = Megatron()
