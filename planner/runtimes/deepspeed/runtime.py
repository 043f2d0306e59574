"""DeepSpeed: its configuration, the batch table, the hostfile and an example."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from planner.cost.compute import MIXED
from planner.cost.memory import (
    BUCKET_ELEMENTS,
    LIVE_ELEMENTS,
    SWAP_BUFFERS,
    SWAPPED_ELEMENTS,
    SWAPPED_TENSORS,
    largest_tensor,
    layer_elements,
    sub_group_elements,
    trained_experts_of,
)
from planner.dims.sharding import gradients_of
from planner.job.batches import example_files
from planner.job.files import EmittedFile, document, launch_files, node_file, number_format
from planner.job.job import FILL_IN, LOOPBACK, NVME_FOLDER, Job
from planner.model.spec import HALVES, ModelSpec
from planner.plan.values import Plan
from planner.runtimes.deepspeed.capabilities import CAPABILITIES
from planner.runtimes.deepspeed.hostfile import hostfile, include, keeps_types
from planner.runtimes.deepspeed.log import DeepSpeedLines
from planner.runtimes.interface import Runtime

NVME_LINES = (
    f"{FILL_IN} a folder on the NVMe of these nodes, for what the plan keeps there; fill in and uncomment.",
    f"# export NVME_PATH={NVME_FOLDER}",
)

NVME_BLOCK = 1 << 20
"""Bytes of a transfer, and elements of which the size of a buffer is a multiple."""

ADAM_CORES = 0.8
"""Share of the processor's cores that update during the backward; DeepSpeed's own."""

SHOWN_HOSTS = 8
"""Hosts of a long option that are written out."""


class DeepSpeed(Runtime):
    """Trains by DeepSpeed's engine, with a batch of its own on every rank."""

    capabilities = CAPABILITIES

    @property
    def tried(self) -> Mapping[str, str]:
        """PyTorch and DeepSpeed."""
        return {**super().tried, CAPABILITIES.name: CAPABILITIES.version}

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The configuration without batch keys, the table that has them, and the example."""
        slots = hostfile(job.agents)
        return (
            EmittedFile("ds_config.json", document(common_config(job.plan, job.model))),
            *example_files(job),
            node_file("planner.runtimes.deepspeed.example_divided"),
            node_file("planner.runtimes.deepspeed.example_pipeline"),
            node_file("planner.runtimes.deepspeed.example_tensor"),
            node_file("planner.runtimes.deepspeed.train"),
            *([EmittedFile("hostfile", slots)] if slots else []),
            *launch_files(
                job,
                job.program("train.py"),
                number_format(job.model.training.precision),
                variables=NVME_LINES if job.plan.offload.uses_nvme else (),
            ),
        )

    def notes(self, job: Job) -> Mapping[str, object]:
        """Whether DeepSpeed's own launcher can start the plan, and how; whether gradients are clipped."""
        return {
            "has_hostfile": hostfile(job.agents) is not None,
            "keeps_types": keeps_types(job.agents, job.ranks),
            "include": include(job.agents, SHOWN_HOSTS),
            "loopback": LOOPBACK,
            "clips": clips(job.plan, job.model),
            "adam_cores": ADAM_CORES,
        }

    def log_reader(self, plan: Plan) -> DeepSpeedLines:
        """Of the engine's timers and speeds."""
        return DeepSpeedLines(plan)

    def how_to_time(self, plan: Plan) -> str | None:
        """The pipeline engine prints no parts."""
        if plan.pp > 1:
            return None
        return 'DeepSpeed prints them with "wall_clock_breakdown": true in ds_config.json'


def common_config(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """The part of the configuration that all ranks share; the runtime adds each rank's batch."""
    precision: dict[str, dict[str, object]] = {
        "bf16": {"bf16": {"enabled": True, **master_options(model)}},
        "fp16": {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}},
        "fp32": {},
        "tf32": {},
    }
    return {
        **precision[model.training.precision],
        **gradient_options(plan, model),
        "zero_optimization": zero_section(plan, model),
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0 if clips(plan, model) else 0.0,
        "steps_per_print": 100,
        **offload_options(plan, model),
        **tensor_options(plan),
    }


def master_options(model: ModelSpec) -> dict[str, object]:
    """Those of bf16 weights that the optimizer updates; the second one says that its moments stay on the device."""
    names = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
    return dict.fromkeys(names, True) if model.training.master_weights == "bf16" else {}


def gradient_options(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """Number formats of gradients where they are not DeepSpeed's own."""
    own, chosen = CAPABILITIES.gradients[0], gradients_of(CAPABILITIES, model.training, plan.zero)
    options: dict[str, object] = {}
    if model.training.precision in HALVES and chosen.reduced != own.reduced:
        options["communication_data_type"] = chosen.reduced
    if model.training.precision in HALVES and chosen.kept != own.kept:
        options["data_types"] = {"grad_accum_dtype": chosen.kept}
    return options


def tensor_options(plan: Plan) -> dict[str, object]:
    """AutoTP, which divides the layers of a model over the ranks of a replica."""
    ways = tensor_ways(plan)
    return {} if ways == 1 else {"tensor_parallel": {"autotp_size": ways}}


def tensor_ways(plan: Plan) -> int:
    """Devices of each replica."""
    return plan.stages[0].replicas[0].tp


def offload_options(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """What a plan that offloads needs beside its ZeRO section."""
    options: dict[str, object] = {}
    if plan.offload.optimizer != "none":
        # DeepSpeed has its own optimizer on processors for Adam alone, and then insists on it.
        options["zero_force_ds_cpu_optimizer"] = model.training.optimizer == "adamw"
    if plan.offload.uses_nvme:
        options["aio"] = {"block_size": NVME_BLOCK, "queue_depth": 16, "overlap_events": True}
    if plan.offload.activations != "none":
        options["activation_checkpointing"] = {"cpu_checkpointing": True}
    return options


def clips(plan: Plan, model: ModelSpec) -> bool:
    """False where DeepSpeed takes one pipeline stage's gradient norm for that of the whole model.

    And with SuperOffload, which updates nothing before all gradients are there where it clips (``partition_grads`` in
    ``superoffload_stage3.py``).
    """
    whole = plan.pp == 1 or plan.zero > 0 or model.training.precision in MIXED
    return whole and not plan.offload.super_offload


def zero_section(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """Options of the plan's ZeRO stage; bucket sizes are in elements."""
    if plan.zero == 0:
        return {"stage": 0}
    bucket = bucket_elements(plan, model)
    section: dict[str, object] = {
        "stage": plan.zero,
        "overlap_comm": plan.pp == 1,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    for key, place in (
        ("offload_optimizer", plan.offload.optimizer),
        ("offload_param", plan.offload.parameters),
    ):
        if place == "cpu":
            section[key] = {"device": place, "pin_memory": True}
    section |= nvme_options(plan, model)
    if own := shared_options(plan):
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **own}
        shard = model.trained_parameters / plan.stages[0].dp / tensor_ways(plan)
        section["sub_group_size"] = ceil(sub_group_elements(shard))
    if plan.zero < 3:
        return {**section, "allgather_bucket_size": bucket}
    largest = max(int(layer_elements(kind, tp=1, expert_ways=plan.folding.ways)) for kind in model.kinds)
    live = min(2 * largest, int(LIVE_ELEMENTS))
    plus = plan.zero_plus
    if plus.secondary:
        section["zero_hpz_partition_size"] = plus.secondary
    if plus.int8_weights:
        section["zero_quantized_weights"] = True
    if plus.int4_gradients:
        section["zero_quantized_gradients"] = True
    layer, live, ends = (
        -(-size // tensor_ways(plan)) for size in (largest, live, model.embedding_parameters)
    )
    return {
        **section,
        "stage3_prefetch_bucket_size": min(int(BUCKET_ELEMENTS), layer),
        "stage3_param_persistence_threshold": 10 * model.hidden,
        "stage3_max_live_parameters": max(live, ends),
        "stage3_max_reuse_distance": layer,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def shared_options(plan: Plan) -> dict[str, object]:
    """Which share of the optimizer is in host memory, and that it is updated there during the backward."""
    options: dict[str, object] = {}
    if plan.offload.ratio < 1:
        options["ratio"] = plan.offload.ratio
    if plan.offload.super_offload:
        options |= {"super_offload": True, "cpuadam_cores_perc": ADAM_CORES}
    return options


def nvme_options(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """What of the ZeRO section is kept on NVMe; ``hetplan_runtime.py`` puts each node's folder in place of this one.

    Buffers hold the states that are read, updated and written, or the parts of a rank's parameters of three layers.
    """
    section: dict[str, object] = {}
    if plan.offload.optimizer == "nvme":
        section["sub_group_size"] = int(SWAPPED_ELEMENTS)
        section["offload_optimizer"] = {
            "device": "nvme",
            "nvme_path": NVME_FOLDER,
            "pin_memory": True,
            "buffer_count": SWAP_BUFFERS,
            "pipeline_read": True,
            "pipeline_write": True,
        }
    if plan.offload.parameters == "nvme":
        part = -(-largest_tensor(model) // plan.stages[0].dp)
        section["offload_param"] = {
            "device": "nvme",
            "nvme_path": NVME_FOLDER,
            "pin_memory": True,
            "buffer_count": SWAPPED_TENSORS,
            "buffer_size": -(-part // NVME_BLOCK) * NVME_BLOCK,
            # Otherwise a billion elements of each rank would stay in host memory.
            "max_in_cpu": 0,
        }
    return section


def bucket_elements(plan: Plan, model: ModelSpec) -> int:
    """Elements of a communication bucket: DeepSpeed allocates it whole, so no more than a device trains.

    It takes even numbers only.
    """
    smallest = min(stage.layers for stage in plan.stages) * model.layer_parameters
    whole = model.trained_parameters - experts_elsewhere(plan, model)
    most = -(-(whole if plan.pp == 1 else smallest) // tensor_ways(plan))
    return min(int(BUCKET_ELEMENTS), most + most % 2)


def experts_elsewhere(plan: Plan, model: ModelSpec) -> int:
    """Elements of experts that are trained and that a device leaves to others."""
    every, own = (
        trained_experts_of(model, layers=model.layers, expert_ways=ways, first=True, last=True)
        for ways in (1, plan.folding.ways)
    )
    return int(every - own)


RUNTIME = DeepSpeed()
