"""What every key of the ``--json`` documents of measurements means."""

from __future__ import annotations

CALIBRATE: dict[str, str] = {
    "file": "Calibration file that was written.",
    "layer_points": "Measured layers in it.",
    "link_points": "Measured collectives and sends in it.",
}
CURVE_ERRORS: dict[str, str] = {
    "curve_errors[].curve": "A fitted curve or constant, in words.",
    "curve_errors[].points": "Its points.",
    "curve_errors[].mean_error": "Mean relative error of its points, each predicted from the others.",
    "curve_errors[].largest_error": "The largest of these errors.",
}
DEVICE: dict[str, str] = {
    "file": "Calibration file that was written.",
    "gpu": "Catalogue name of the device, or a name made from what the driver says.",
    "family": "Family that the constants belong to; the device's own name outside the catalogue.",
    "ended_by": "--minutes or Ctrl-C where points are left; null when all was measured.",
    "kernel_points": "Measured kernels in the file.",
    "layer_points": "Measured layers in the file.",
    "constants[].name": "A constant as in a calibration file, families.A100.matmul_efficiency.",
    "constants[].value": "Its value, in the unit of the calibration file.",
    "constants[].spread": "Robust relative standard deviation over the sizes; null when unknown.",
    "constants[].provenance": "measured; fitted, datasheet or assumed for one that was in the file.",
    "limits[].tp": "A tensor-parallel degree.",
    "limits[].micro_batch": "Largest micro-batch that ran.",
    "limits[].out_of_memory": "Smallest that ran out of memory; null when the growth ended before.",
    **CURVE_ERRORS,
    "declaration[]": "Lines for gpus: of a cluster file; none for a device of the catalogue.",
    "warnings[]": "What to know before trusting the points.",
}
NETWORK: dict[str, str] = {
    "file": "Calibration file that was written.",
    "link_points": "Points of these links and numbers of devices in the file.",
    "new_link_points": "Those that this run measured or read.",
    "fits[].link": "node:GPU, or the name of a fabric.",
    "fits[].operation": "The collective, or send.",
    "fits[].members": "Devices of the group.",
    "fits[].latency_seconds": "Time at size 0 of a line through the points.",
    "fits[].bytes_per_second": "Bytes of the whole tensor a second on that line; null when the time does not grow.",
    "fits[].mean_error": "Mean relative error of the line at the points.",
    **CURVE_ERRORS,
    "warnings[]": "What to know before trusting the points.",
}
CALIBRATION: dict[str, str] = {
    "file": "The calibration file.",
    "provenance.*": "What the last measurements were made with, free text by name.",
    "sources.*": "The same for each source that points and constants name.",
    "constants[].name": "A constant as in a calibration file, families.A100.matmul_efficiency.",
    "constants[].value": "Its value, in the unit of the calibration file.",
    "constants[].spread": "Its relative standard error; null when unknown.",
    "constants[].provenance": "measured, fitted, datasheet or assumed.",
    "constants[].source": "Its key of sources; null when unknown.",
    "curves[].curve": "Measured layers or collectives, in words.",
    "curves[].rate_unit": "seq/s of sequences through one layer, GB/s of the whole tensor.",
    "curves[].points[].size": "Micro-batch, or bytes of the tensor.",
    "curves[].points[].rate": "Rate at it, in rate_unit.",
    **CURVE_ERRORS,
    "coverage[].part": "A device, a framework or a link of --cluster; coverage is null without it.",
    "coverage[].what": "A constant, layers of --model by tp, or operations.",
    "coverage[].state": "measured, fitted, datasheet, assumed, or missing where the constants stand in.",
    "coverage[].detail": "The number and where it is from, in words.",
}
FIT: dict[str, str] = {
    "file": "Calibration file that was written; null without -o.",
    "runs": "Runs that were fitted to: those with a step time and no doubt about their plan.",
    "constants[].name": "A constant as in a calibration file, families.A100.matmul_efficiency.",
    "constants[].value": "Its value, in the unit of the calibration file.",
    "constants[].spread": "Its relative standard error; null when unknown.",
    "constants[].provenance": "fitted; measured, datasheet or assumed for one that the runs did not tell.",
    "sources[].source": "A source.",
    "sources[].runs": "Its runs.",
    "sources[].mean_error": "Mean size of their errors; an error is predicted over measured seconds, less 1.",
    "sources[].left_out_error": "Likewise when the runs of the same source and model are left out of the fit.",
    "residuals[].family": "Family of GPUs.",
    "residuals[].stack": "Framework, as a plan's target names it.",
    "residuals[].runs": "Runs that used both.",
    "residuals[].spread": "Relative standard error of their step times, the spread of later estimates.",
}
