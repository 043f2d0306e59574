"""What every key of the ``--json`` documents means; the reference page is written from here."""

from __future__ import annotations

HEAD: dict[str, str] = {
    "format": "Version of the document, 1; grows when a key changes its meaning or goes away.",
    "command": "The command that wrote it.",
}
PLAN: dict[str, str] = {
    "status": "optimal (within the asked gap), feasible (a plan, the gap is open), infeasible (proven), "
    "unknown (stopped before any plan was found), predicted (priced, not searched).",
    "bound_seconds": "No plan of the space takes less; null when nothing is known.",
    "gap": "(step_seconds - bound_seconds) / step_seconds; null without a search.",
    "search_seconds": "How long the search took; null without a search.",
    "step_seconds": "Seconds of one optimizer step.",
    "spread": "Relative standard error of step_seconds.",
    "tokens_per_second": "Tokens of all devices together.",
    "tflops_per_gpu": "Useful TFLOP/s per used device, recomputation not counted.",
    "mfu": "Useful FLOP/s over the dense peak of the used devices.",
    "peak_memory_bytes": "Bytes on the fullest device, the reserve not counted.",
    "fits": "Whether every device holds its share with the reserve free.",
    "misfits": "Where it does not fit, in words.",
    "devices": "Devices that the plan uses.",
    "plan.target": "Runtime that the plan is for.",
    "plan.zero": "ZeRO stage; 1 is Megatron's distributed optimizer.",
    "plan.pp": "Pipeline stages.",
    "plan.interleave": "Chunks of layers per device.",
    "plan.sequence_parallel": "Whether activations outside tensor-parallel matrices are split by tokens.",
    "plan.global_batch": "Sequences per step.",
    "plan.micro_batches": "Micro-batches of the replica that has most.",
    "stages[].layers": "Layers of the stage.",
    "stages[].first_layer": "Its first layer, counted from 0.",
    "stages[].end_layer": "One past its last layer.",
    "stages[].recompute": "none, selective or full.",
    "stages[].forward_seconds": "Forward of one micro-batch on the slowest replica.",
    "stages[].backward_seconds": "Its backward, recomputation included.",
    "stages[].send_seconds": "Sending one micro-batch's activations to the next stage.",
    "stages[].sync_seconds": "Exposed gradient reduction and parameter gather at the end of the step.",
    "stages[].crosses": "Where its replicas reduce gradients: device, node, or a fabric.",
    "stages[].link": "Path to the next stage; empty for the last.",
    "stages[].replicas[].pool": "Pool of the group's devices.",
    "stages[].replicas[].gpu": "Their kind.",
    "stages[].replicas[].tp": "Devices of one replica.",
    "stages[].replicas[].count": "Replicas of the group.",
    "stages[].replicas[].micro_batch": "Sequences of its largest micro-batch.",
    "stages[].replicas[].share": "Sequences of one replica in a step.",
    "stages[].replicas[].steps": "Micro-batches of one replica in a step.",
    "stages[].replicas[].forward_seconds": "Forward of its largest micro-batch.",
    "stages[].replicas[].backward_seconds": "Its backward, recomputation included.",
    "stages[].replicas[].memory_bytes.*": "Bytes on one device: parameters, gradients, optimizer, "
    "activations, logits, buffers, runtime, reserve; capacity, used (without the reserve) and headroom.",
    "breakdown.*": "Seconds of one step by cause: compute, recompute, tensor_parallel, zero, bubble, "
    "gradient_sync and optimizer add up to the step; hidden is communication under computation.",
}
RANKS: dict[str, str] = {
    "ranks[].first_rank": "First of consecutive ranks on equal devices.",
    "ranks[].ranks": "How many.",
    "ranks[].stage": "Their stage.",
    "ranks[].pool": "Their pool.",
    "ranks[].gpu": "Their kind of device.",
    "ranks[].hosts": "Their hosts in rank order.",
    "ranks[].devices": "Device indices used on each host.",
    "ranks[].tp": "Devices of one replica.",
    "ranks[].replicas_per_host": "Replicas on each host.",
    "idle[].pool": "Pool of idle devices.",
    "idle[].gpu": "Their kind.",
    "idle[].hosts": "Their hosts.",
    "idle[].devices": "Idle device indices on each host.",
}
CONSIDERED: dict[str, str] = {
    "alternatives[].family": "A family of plans that was considered.",
    "alternatives[].chosen": "Whether the answer is of this family.",
    "alternatives[].reason": "Why it lost.",
    "alternatives[].step_seconds": "Step of its best plan; null when it has none.",
    "alternatives[].tokens_per_second": "Throughput of its best plan.",
}
UNDERSTOOD: dict[str, str] = {
    "warnings": "What to know before trusting the answer, in words.",
    "understood.cluster.*": "The cluster file with every default filled in.",
    "understood.model.*": "The model file likewise, and its number of parameters; null when none was given.",
}
SEARCH: dict[str, str] = {
    "interrupted": "Whether Ctrl-C stopped the search.",
    "candidates": "Outer choices considered: target, ZeRO, degrees, depth, micro-batch, recomputation.",
    "solved": "Outer choices that needed the solver; bounds ruled out the others.",
    **CONSIDERED,
    "advice[].target": "A runtime that could run a faster plan.",
    "advice[].change": "What differs there.",
    "advice[].faster": "Share of the step it would save.",
    "advice[].step_seconds": "Its step.",
    "advice[].tokens_per_second": "Its throughput.",
    "diagnosis.causes": "Facts that together rule out every plan; diagnosis is null when there is one.",
    "diagnosis.nearest_miss": "The plan that lacks least.",
    "diagnosis.hints": "Smallest changes that make it fit.",
}
NEIGHBOURS: dict[str, str] = {
    "neighbours[].change": "One changed decision.",
    "neighbours[].fits": "Whether the changed plan fits.",
    "neighbours[].step_seconds": "Its step.",
    "neighbours[].tokens_per_second": "Its throughput.",
}
COMPARE: dict[str, str] = {
    "plans[].name": "The plan file, or what people do today.",
    "plans[].note": "Why there is no plan, or what makes the comparison uneven.",
    "plans[].plan.*": "The keys of a plan as in predict; null when there is none.",
    "warnings": "The notes that are not empty.",
}
CHECK: dict[str, str] = {
    "devices": "Devices of the cluster.",
    "kinds[].pool": "A pool.",
    "kinds[].gpu": "A kind of device in it.",
    "kinds[].nodes": "Its nodes.",
    "kinds[].per_node": "Devices of the kind on one node.",
    "kinds[].memory_bytes": "Memory of one device.",
    "kinds[].reserve_bytes": "Memory kept free on it.",
    "kinds[].peak_flops.*": "Dense peak FLOP/s by number format.",
    "links[].between": "Two pools; the same twice for two nodes of one pool.",
    "links[].path": "Fabric, fabrics joined by +, node for a single node; null without a path.",
    "links[].bytes_per_second": "Bandwidth of one node to another; null without a path.",
    "links[].latency_seconds": "Latency of one message; null without a path.",
}
EMIT: dict[str, str] = {
    "target": "Runtime of the plan.",
    "folder": "Folder that was written.",
    "files": "Files in it.",
    "warnings": "Where the plan does not fit, in words.",
}

DOCUMENTS: dict[str, dict[str, str]] = {
    "search": {**HEAD, **PLAN, **SEARCH, **UNDERSTOOD},
    "predict": {**HEAD, **PLAN, **RANKS, **UNDERSTOOD},
    "show": {**HEAD, **PLAN, **RANKS, **UNDERSTOOD},
    "explain": {**HEAD, **PLAN, **RANKS, **CONSIDERED, **NEIGHBOURS, **UNDERSTOOD},
    "compare": {**HEAD, **COMPARE},
    "check": {**HEAD, **CHECK, **UNDERSTOOD},
    "emit": {**HEAD, **EMIT},
}
"""Keys of each command's document; ``[]`` stands for every entry of a list, ``.*`` for keys of the user's."""
