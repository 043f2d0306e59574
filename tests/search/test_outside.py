"""What the space leaves out is named where it matters, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.capabilities import OffloadPart
from planner.catalog import gpu_spec
from planner.model.spec import LoraSpec, RunSpec
from planner.plan.values import Offload, Sync
from planner.search.solve import search
from planner.search.space.outside import outside
from planner.search.values import Limits
from tests.worlds import cluster, gpt, model, nic, pool


def test_one_device_leaves_nothing_out() -> None:
    """No pipeline, no second kind, no second node."""
    assert outside(cluster(pool("a", per_node=1)), gpt(), Limits(target="flagscale")) == ()


def test_depth_and_chunks() -> None:
    """Named where layers and devices allow more than the search tries."""
    deep = "pipelines of more than 64 stages"
    chunks = "more than 4 layer chunks per device"
    spec, model = cluster(pool("a", nodes=16)), gpt(96)
    assert {deep, chunks} <= set(outside(spec, model, Limits(target="megatron")))
    assert deep not in outside(spec, gpt(48), Limits(target="megatron"))
    assert deep not in outside(spec, model, Limits(target="megatron", pp=(8,)))
    assert chunks not in outside(spec, model, Limits(target="deepspeed"))
    assert chunks not in outside(spec, model, Limits(target="megatron", pp=(1,)))


def test_kinds_nodes_batches_and_groups() -> None:
    """Stages of several device types, on parts of nodes, large micro-batches, hybrid sharding and offloading."""
    one, two = cluster(pool("a")), cluster(pool("a", nodes=2), pool("b", "V100"))
    mixed = "stages that mix device types, except where they use up leftover devices"
    parts = "stages spread over parts of several nodes"
    assert not {mixed, parts} & set(outside(one, gpt(), Limits(target="megatron")))
    assert {mixed, parts} <= set(outside(two, gpt(), Limits(target="megatron")))
    assert "stages of several device types" in outside(two, gpt(), Limits(target="flagscale"))
    assert "stages of several device types" in outside(two, gpt(1), Limits(target="flagscale", pp=(1,)))
    large = "micro-batches of more than 512 sequences"
    assert large not in outside(one, gpt(global_batch=512), Limits(target="torch"))
    assert large in outside(one, gpt(global_batch=513), Limits(target="torch"))
    assert large in outside(one, gpt(global_batch=513), Limits(target="torch", pp=(1, 2)))
    assert large not in outside(one, gpt(global_batch=513), Limits(target="megatron"))
    short = gpt(global_batch=5000, sequence_length=32)
    assert "micro-batches of more than 4096 sequences" in outside(one, short, Limits(target="torch"))
    hybrid = "HSDP groups of parts of a node or of several nodes, of replicas with equal batches"
    assert hybrid in outside(one, gpt(), Limits(target="torch"))
    assert hybrid in outside(cluster(pool("a", per_node=3, nodes=4)), gpt(), Limits(target="torch"))
    assert hybrid not in outside(cluster(pool("a", per_node=3, nodes=2)), gpt(), Limits(target="torch"))
    assert hybrid not in outside(one, gpt(), Limits(target="torch", pp=(1,)))
    mixed = "HSDP groups of several device types"
    assert mixed in outside(two, gpt(), Limits(target="torch"))
    assert mixed not in outside(one, gpt(), Limits(target="torch"))
    stages = "HSDP with stages that mix device types, of replicas with equal batches"
    assert stages in outside(two, gpt(), Limits(target="torch"))
    assert stages not in outside(two, gpt(), Limits(target="torch", pp=(1,)))
    assert stages not in outside(one, gpt(), Limits(target="torch"))
    assert "offloading" in outside(one, gpt(), Limits(target="deepspeed"))
    assert hybrid not in outside(one, gpt(), Limits(target="megatron"))
    assert "offloading" not in outside(one, gpt(), Limits(target="flagscale"))


def test_many_device_types() -> None:
    """Of many only small sets share a stage."""
    few, many = (
        cluster(*(pool(f"p{each}", per_node=1, gbps=100 + each) for each in range(number)))
        for number in (13, 20)
    )
    most = "stages that mix more than 4 device types"
    assert most in outside(many, gpt(), Limits(target="megatron"))
    assert not any("mix more than" in each for each in outside(few, gpt(), Limits(target="megatron")))
    assert most not in outside(many, gpt(), Limits(target="flagscale"))


def test_tensor_parallel_replicas() -> None:
    """Of one stage, where a target could give them unlike batches, or devices of several types, and the search gives
    none: those that share sequences, and those of adapters."""
    divided, unlike, mixed = (
        "replicas that share sequences, with batches or micro-batches of unequal size",
        "tensor-parallel replicas with batches or micro-batches of unequal size",
        "stages that mix device types, except where they use up leftover devices",
    )
    one, two = cluster(pool("a")), cluster(pool("a"), pool("b", "V100"))
    assert divided in outside(one, gpt(), Limits(target="torch"))
    assert divided not in outside(one, gpt(), Limits(target="torch", cp=(1,)))
    assert divided not in outside(one, gpt(), Limits(target="torch", pp=(2,)))
    assert divided not in outside(one, gpt(), Limits(target="megatron"))
    assert divided not in outside(cluster(pool("a", per_node=1)), gpt(), Limits(target="torch"))
    whole = Limits(target="torch", pp=(1,), cp=(1,))
    adapted = gpt(lora=LoraSpec(rank=4))
    assert unlike not in outside(two, gpt(), whole)
    assert unlike in outside(two, adapted, whole)
    assert unlike not in outside(two, adapted, replace(whole, tp=(1,)))
    assert unlike not in outside(cluster(pool("a", nodes=2, per_node=1)), adapted, whole)
    assert mixed in outside(two, gpt(), Limits(target="torch"))
    assert mixed not in outside(two, gpt(), whole)
    assert mixed in outside(two, adapted, whole)
    assert mixed not in outside(two, adapted, replace(whole, tp=(1,)))


def test_offloading_beside_other_dimensions() -> None:
    """Hosts keep something of divided layers where replicas have batches of their own, or with Megatron."""
    one, apart = cluster(pool("a")), "offloading with tensor parallelism by deepspeed"
    asked: tuple[OffloadPart, ...] = ("none", "optimizer")
    adapted = gpt(lora=LoraSpec(rank=2), precision="bf16")
    assert apart in outside(one, adapted, Limits(target="deepspeed", offload=asked))
    assert apart not in outside(one, adapted, Limits(target="deepspeed", offload=asked, tp=(1,)))
    assert apart not in outside(one, gpt(), Limits(target="deepspeed", offload=asked))
    assert apart not in outside(one, gpt(), Limits(target="megatron", offload=asked))


def test_superoffload_beside_divided_sequences() -> None:
    """Left out, where both are asked for: no plan that the search prices has both."""
    chips = cluster(pool("a", "GH200-96GB", nodes=2), gpus={"GH200-96GB": gpu_spec("GH200-96GB")})
    long = gpt(precision="bf16", sequence_length=16_384, attention="flash")
    asked = Limits(target="deepspeed", offload=("optimizer", "super"))
    assert "SuperOffload with divided sequences" in outside(chips, long, asked)
    assert "SuperOffload with divided sequences" not in outside(chips, long, replace(asked, cp=(1,)))
    found = search(chips, long, limits=replace(asked, cp=(2,)), explain=False).best
    assert found is not None
    assert found.plan.offload == Offload(optimizer="cpu")


def test_shares_of_the_optimizer_and_superoffload() -> None:
    """Tenths are in the space of those who have them; updates ahead of clipping on superchips alone, if asked for."""
    shares = "shares of the optimizer in host memory other than tenths, or beside offloaded parameters"
    ahead = "SuperOffload, which does not clip gradients (--offload super)"
    chips = cluster(pool("a", "GH200-96GB"), gpus={"GH200-96GB": gpu_spec("GH200-96GB")})
    asked = Limits(target="deepspeed", offload=("none", "optimizer"))
    half = gpt(precision="bf16")
    assert {shares, ahead} <= {*outside(chips, half, asked)}
    assert ahead not in outside(chips, half, replace(asked, offload=("optimizer", "super")))
    assert ahead not in outside(chips, gpt(), asked)
    assert shares not in outside(chips, half, replace(asked, offload=("none", "activations")))
    assert ahead not in outside(cluster(pool("a")), half, asked)
    assert shares in outside(chips, half, replace(asked, target="megatron"))
    assert shares not in outside(chips, half, replace(asked, target="torch"))


def test_where_a_run_of_stages_goes_on_to_another_node() -> None:
    """Neighbours share a node while it has room; that is named wherever there is another node to go to."""
    apart = "stages on the nodes of their pool in another order than the pipeline's"
    one, two = (cluster(pool("a", nodes=nodes)) for nodes in (1, 2))
    assert apart in outside(two, gpt(), Limits(target="megatron"))
    assert apart in outside(cluster(pool("a", nodes=2, per_node=2)), gpt(), Limits(target="megatron"))
    assert apart not in outside(one, gpt(), Limits(target="megatron"))
    assert apart not in outside(two, gpt(), Limits(target="megatron", pp=(1,)))
    assert apart not in outside(cluster(pool("a", nodes=2, per_node=1)), gpt(), Limits(target="megatron"))


def test_layers_at_either_end() -> None:
    """They stay on the first and the last stage of a pipeline."""
    apart = "layers before or after the blocks on stages other than the first and the last"
    run = (RunSpec(layers=1),)
    for ends in ({"ahead": run}, {"behind": run}, {}):
        spec = model(16, layers=4, **ends)
        assert (apart in outside(TWO, spec, Limits(target="torch"))) is bool(ends)
        assert apart not in outside(TWO, spec, Limits(target="torch", pp=(1,)))


def test_a_search_says_it() -> None:
    """With its answer; sub-clusters are named under a goal."""
    found = search(
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)),
        gpt(4, 512, 8, global_batch=4),
        explain=False,
    )
    assert "stages that mix device types, except where they use up leftover devices" in found.outside
    candidates = "numbers of devices between those of the sub-clusters"
    assert candidates in outside(cluster(pool("a")), gpt(), Limits(), subclusters=True)


def test_equal_pools_are_one() -> None:
    """Two of a node each are seen as one of two nodes, on whatever network they are equal."""
    parts = "stages spread over parts of several nodes"
    alike = cluster(pool("a", per_node=3), pool("b", per_node=3))
    assert parts in outside(alike, gpt(), Limits(target="deepspeed"))
    unlike = cluster(pool("a", per_node=3), pool("b", "V100", per_node=3))
    assert parts not in outside(unlike, gpt(), Limits(target="deepspeed"))


def test_replicas_on_several_nodes_lie_in_one_pool() -> None:
    """Where equal pools as one have room for more of them, that is named; where each has as much, nothing is."""
    torn = "tensor-parallel groups over nodes of several equal pools"
    for nodes, degrees, named in ((1, (2,), True), (2, (2,), False), (2, (4,), True), (3, (2,), True)):
        alike = cluster(*(pool(name, nodes=nodes, per_node=1) for name in "ab"))
        assert (torn in outside(alike, gpt(), Limits(target="megatron", tp=degrees))) == named
    unlike = cluster(pool("a", per_node=1), pool("b", "V100", per_node=1))
    assert torn not in outside(unlike, gpt(), Limits(target="megatron"))
    one = cluster(pool("a", nodes=3, per_node=1))
    assert torn not in outside(one, gpt(), Limits(target="megatron"))


def test_rdma_behind_ethernet() -> None:
    """Where Ethernet carries more than the InfiniBand beside it, which is named; where it does not, nothing is."""
    what = "RDMA between nodes whose path over Ethernet carries more"
    for gbps, nodes, named in ((400, 2, True), (400, 1, False), (5, 2, False)):
        cards = (nic("ib", gbps=10), nic("eth", gbps=gbps))
        assert (what in outside(cluster(pool("a", nodes=nodes, nics=cards)), gpt(), Limits())) == named
    ways = (nic("ib", gbps=10), nic("eth", gbps=400))
    assert what in outside(cluster(pool("a", nics=ways), pool("b", "V100", nics=ways)), gpt(), Limits())


TWO = cluster(pool("a", nodes=2, per_node=3), pool("b", "V100"))
LONG = gpt(sequence_length=16_384, attention="flash", global_batch=600)
ANYWHERE = (
    "stages on the nodes of their pool in another order than the pipeline's",
    "stages that mix device types, except where they use up leftover devices",
    "pipelines whose replicas divide the layers in ways of their own",
    "stages spread over parts of several nodes",
)
CHUNKS = ("more than 4 layer chunks per device",)
DIVIDED = ("interleaved zero-bubble schedules",)
SHORT = ("sequences divided into parts of fewer than 8192 tokens",)
APART = ("sequences divided over several device types, or over parts of several nodes",)
LEFT_OVER = ("stages on devices of a node that a tensor-parallel stage leaves over",)
WHOLE = ("tensor parallelism without sequence parallelism, where both can be had",)
LARGE = ("micro-batches of more than 512 sequences",)
UNLIKE = ("replicas that share sequences, with batches or micro-batches of unequal size",)
HYBRID = (
    "replicas whose numbers of micro-batches differ by more than one",
    "HSDP groups that neither fit into a node nor fill whole nodes",
    "HSDP groups of parts of a node or of several nodes, of replicas with equal batches",
    "HSDP groups on parts of several nodes",
    "HSDP groups of several device types",
    "HSDP with stages that mix device types, of replicas with equal batches",
)
ASKED = (
    "tensor grids of several device types",
    "islands of single nodes or of parts of a pool, and islands with ZeRO 1 to 3",
    "backup replicas of several device types, of parts of several pools, or with unequal micro-batches",
    "unequal shards in other proportions, or among devices of one type",
)
EXPERTS = (
    "experts copied within a replica, or split over more devices than it has",
    "expert-parallel groups of several device types, or on parts of several nodes",
)
SECOND_COPIES = (
    "second copies of the parameters in groups that are not an even part of a node",
    "ZeRO 3 with quantised parameters or gradients (--allow-quantised-zero)",
)
ON_HOSTS = ("shares of the optimizer in host memory other than tenths, or beside offloaded parameters",)


@pytest.mark.parametrize(
    ("limits", "left_out"),
    [
        (
            Limits(target="torch"),
            (
                *(CHUNKS + DIVIDED + ANYWHERE + SHORT + APART + LEFT_OVER + WHOLE + LARGE + UNLIKE + HYBRID),
                "tensor grids (--allow-tensor-grids)",
                "offloading",
            ),
        ),
        (
            Limits(
                target="torch",
                pp=(2,),
                cp=(1,),
                syncs=(Sync(every=4),),
                backup=1,
                unequal_shards=True,
                grids=True,
            ),
            (*(CHUNKS + DIVIDED + ANYWHERE + APART + LEFT_OVER + WHOLE + HYBRID + ASKED), "offloading"),
        ),
        (
            Limits(target="megatron"),
            (*(CHUNKS + ANYWHERE + SHORT + APART + LEFT_OVER + WHOLE), "offloading"),
        ),
        (
            Limits(target="deepspeed", offload=("none", "optimizer")),
            ANYWHERE + SHORT + APART + LEFT_OVER + LARGE + UNLIKE + SECOND_COPIES + ON_HOSTS,
        ),
        (
            Limits(target="flagscale"),
            (ANYWHERE[0], "stages of several device types", *ANYWHERE[2:], *LEFT_OVER, *WHOLE),
        ),
    ],
    ids=["torch", "all that is asked for", "megatron", "offload", "flagscale"],
)
def test_all_that_is_left_out(limits: Limits, left_out: tuple[str, ...]) -> None:
    """Of long sequences on two nodes of three devices and one of eight others, and nothing else."""
    assert outside(TWO, LONG, limits) == left_out


def test_what_is_left_out_of_experts_and_of_many_nodes() -> None:
    """Experts are divided in the ways of their own; 40 nodes are more than twice the groups of HSDP."""
    few = model(16, experts={"number": 4, "top_k": 2, "ffn": 64})
    assert outside(TWO, few, Limits(target="megatron")) == (
        *(ANYWHERE[:1] + ANYWHERE[3:] + SHORT + APART + EXPERTS + LEFT_OVER + WHOLE),
        "offloading",
    )
    many = outside(cluster(pool("a", nodes=40)), gpt(96, global_batch=600), Limits(target="torch"))
    assert many[0] == "pipelines of more than 64 stages"
    wide = "HSDP groups of more than 16 nodes that do not divide a device type evenly"
    assert [line for line in many if "HSDP" in line] == [HYBRID[2], HYBRID[3], wide]
    assert wide not in outside(cluster(pool("a", nodes=32)), gpt(96), Limits(target="torch"))


def test_whole_sequences_beside_divided_ones() -> None:
    """Named where tensor parallelism may divide the sequence, which the search then has it do."""
    spec = cluster(pool("a"))
    assert {*WHOLE} <= {*outside(spec, gpt(), Limits(target="torch"))}
    assert {*WHOLE} <= {*outside(spec, gpt(), Limits(target="megatron", tp=(2,)))}
    assert not {*WHOLE} & {*outside(spec, gpt(), Limits(target="torch", tp=(1,)))}
    assert not {*WHOLE} & {*outside(spec, gpt(sequence_length=129), Limits(target="torch"))}
    assert not {*WHOLE} & {*outside(spec, gpt(), Limits(target="deepspeed"))}
