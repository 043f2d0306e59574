"""Launch files for DeepSpeed: its configuration, the batch table, the hostfile and an example."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.cost.compute import MIXED
from planner.cost.memory import BUCKET_ELEMENTS
from planner.job.batches import table_text
from planner.job.files import EmittedFile, document, node_file
from planner.job.launch import Program, launch_files, number_format_lines
from planner.job.network import job_network
from planner.model.spec import ModelSpec
from planner.plan.placement import agents, ranks
from planner.plan.values import Plan
from planner.runtimes.deepspeed.hostfile import hostfile
from planner.runtimes.deepspeed.readme import readme
from planner.runtimes.deepspeed.rules import check_config


def files(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[EmittedFile, ...]:
    """Every file of the folder."""
    config = common_config(plan, model)
    check_config(config, plan.pp)
    everyone = ranks(plan, cluster)
    launchers = agents(everyone)
    prologue = "\n".join(number_format_lines(model.training.precision))
    launch = launch_files(launchers, cluster, Program(command="train.py", prologue=prologue))
    slots = hostfile(launchers)
    network = job_network(cluster, launchers)
    return (
        EmittedFile("ds_config.json", document(config)),
        EmittedFile("batches.json", table_text(plan, everyone)),
        EmittedFile("model.json", document(model_shape(model))),
        node_file("planner.training.hetplan_runtime"),
        node_file("planner.training.example_model"),
        node_file("planner.training.example_data"),
        node_file("planner.training.example_run"),
        node_file("planner.training.step_log"),
        node_file("planner.runtimes.deepspeed.train"),
        *([EmittedFile("hostfile", slots)] if slots else []),
        *launch,
        EmittedFile(
            "README.md",
            readme(plan, model, everyone, launchers, network, launch, clips(plan, model)),
        ),
    )


def common_config(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """The part of the configuration that all ranks share; the runtime adds each rank's batch."""
    precision: dict[str, dict[str, object]] = {
        "bf16": {"bf16": {"enabled": True}},
        "fp16": {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}},
        "fp32": {},
        "tf32": {},
    }
    return {
        **precision[model.training.precision],
        "zero_optimization": zero_section(plan, model),
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0 if clips(plan, model) else 0.0,
        "steps_per_print": 100,
        **offload_options(plan, model),
    }


def offload_options(plan: Plan, model: ModelSpec) -> dict[str, object]:
    """What a plan that offloads needs beside its ZeRO section."""
    options: dict[str, object] = {}
    if plan.offload.optimizer != "none":
        # DeepSpeed has its own optimizer on processors for Adam alone, and then insists on it.
        options["zero_force_ds_cpu_optimizer"] = model.training.optimizer == "adamw"
    if plan.offload.activations != "none":
        options["activation_checkpointing"] = {"cpu_checkpointing": True}
    return options


def clips(plan: Plan, model: ModelSpec) -> bool:
    """False where DeepSpeed takes one pipeline stage's gradient norm for that of the whole model."""
    return plan.pp == 1 or plan.zero > 0 or model.training.precision in MIXED


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
        if place != "none":
            section[key] = {"device": place, "pin_memory": True}
    if plan.zero < 3:
        return {**section, "allgather_bucket_size": bucket}
    layer = model.layer_parameters
    return {
        **section,
        "stage3_prefetch_bucket_size": min(bucket, layer),
        "stage3_param_persistence_threshold": 10 * model.hidden,
        "stage3_max_live_parameters": max(2 * layer, model.embedding_parameters),
        "stage3_max_reuse_distance": layer,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def bucket_elements(plan: Plan, model: ModelSpec) -> int:
    """Elements of a communication bucket: DeepSpeed allocates it whole, so no more than a stage has."""
    smallest = min(stage.layers for stage in plan.stages) * model.layer_parameters
    return min(int(BUCKET_ELEMENTS), model.parameters if plan.pp == 1 else smallest)


def model_shape(model: ModelSpec) -> dict[str, object]:
    """What the example needs to build a model of the planned shape."""
    training = model.training
    shape: dict[str, object] = model.model_dump(exclude={"training"})
    return {**shape, "sequence_length": training.sequence_length, "optimizer": training.optimizer}
