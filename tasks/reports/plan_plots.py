"""The pictures of a plan: memory by part, the roofline, cost against load, and its accuracy."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.compare import Verdict
from millrace.models.planner.cost import cost_per_million
from millrace.models.planner.decode_plan import RUNTIME_BYTES as GPU_RUNTIME
from millrace.models.planner.estimates import QUANTITIES
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.serving_column import ACTOR_BYTES
from millrace.models.planner.work import ServingWork, Work
from millrace.models.planner.work_terms import RUNTIME_BYTES, SERVING_BYTES, training_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 60
PICTURES_OF_A_LINE = 3
GIGA = 1e9


def pictures_of(work: Work, verdicts: Sequence[Verdict]) -> dict[str, "Figure"]:
    """Return the pictures of a plan, by the names of their files.

    The cost needs a machine with a price; memory and roofline are of the first machine.
    """
    machines = verdicts[0].sheet.machines
    figures = {
        "memory.png": memory_figure(work, machines),
        "roofline.png": roofline_figure(work, machines),
    }
    if any(each.sheet.machines.dollars_per_hour is not None for each in verdicts):
        figures["cost.png"] = cost_figure(work, verdicts)
    return figures


def memory_figure(work: Work, machines: Machines) -> "Figure":
    """Draw what each stage keeps in a device's memory, by part, and how much there is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    stages = memory_parts(work, machines)
    names = list(dict.fromkeys(name for parts in stages.values() for name in parts))
    for number, name in enumerate(names):
        left = [_before(parts, name) for parts in stages.values()]
        size = [parts.get(name, 0.0) / GIGA for parts in stages.values()]
        axes.barh(list(stages), size, left=left, label=name, color=f"C{number}")
    available = machines.device.memory / GIGA
    largest = max(sum(parts.values()) for parts in stages.values()) / GIGA
    if available < 20 * largest:
        axes.axvline(available, color="black", linestyle="--", label="a device has")
    axes.set_xlabel(f"GB on each device or worker; {available:.3g} GB on {machines}")
    axes.set_title(f"{work.model}: memory by part")
    axes.invert_yaxis()
    axes.legend(frameon=False, ncols=3, fontsize="small")
    return figure


def _before(parts: Mapping[str, float], name: str) -> float:
    """Return the GB of the parts that are drawn before one."""
    before = list(parts)[: list(parts).index(name)] if name in parts else []
    return sum(parts[each] for each in before) / GIGA


def memory_parts(work: Work, machines: Machines) -> dict[str, dict[str, float]]:
    """Return the bytes of each stage by part, as they are counted: no factor is fitted."""
    is_cpu = machines.device.is_cpu
    training = training_parts(work.training, on_gpu=not is_cpu)
    if is_cpu:
        training = {"runtime": RUNTIME_BYTES, **training}
    return {
        "training": {name: size for name, size in training.items() if size},
        "online": _serving_parts(work.online, is_cpu=is_cpu),
        "batch": _actors_parts(work.batch) if is_cpu else _serving_parts(work.batch, is_cpu=False),
    }


def _actors_parts(job: ServingWork) -> dict[str, float]:
    """Return the bytes of all actors of a CPU, each of which is a process of Ray."""
    parts = _serving_parts(job, is_cpu=True)
    if job.generation is not None:
        return parts
    return {**parts, "runtime": job.instances * (SERVING_BYTES + ACTOR_BYTES)}


def _serving_parts(serving: ServingWork, *, is_cpu: bool) -> dict[str, float]:
    variant, generation = serving.variants[0], serving.generation
    parts = {"runtime": SERVING_BYTES if is_cpu or generation is None else GPU_RUNTIME}
    if generation is None:
        parts["weights"] = variant.weight_bytes * serving.instances
        parts["activations"] = serving.bytes_per_unit * serving.call_units * serving.instances
    else:
        parts["weights"] = variant.weight_bytes / generation.tensor_parallel
        parts["KV cache"] = generation.cache_bytes / generation.tensor_parallel
    return parts


def roofline_figure(work: Work, machines: Machines) -> "Figure":
    """Draw the machine's roofline, and where training and serving lie under it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots()
    device = machines.device
    points = intensities(work)
    low = min([0.1, *(each / 3 for each, _ in points.values())])
    high = max([1e4, *(each * 3 for each, _ in points.values())])
    line = [low * (high / low) ** (n / POINTS) for n in range(POINTS + 1)]
    for number, (data_type, rate) in enumerate(device.rates.items()):
        roof = [min(rate, each * device.memory_bandwidth) for each in line]
        axes.plot(line, roof, color=f"C{number}", label=f"{data_type}, {rate / 1e12:.3g} TFLOP/s")
    for number, (name, (intensity, data_type)) in enumerate(points.items()):
        reached = min(device.rate(data_type), intensity * device.memory_bandwidth)
        axes.plot([intensity], [reached], "o", color="black")
        axes.annotate(
            f"{name} ({intensity:.3g})",
            (intensity, reached),
            textcoords="offset points",
            xytext=(8, -14 - 12 * (number % 2)),
            fontsize="small",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of memory traffic")
    axes.set_ylabel("FLOP/s")
    bandwidth = device.memory_bandwidth / GIGA
    axes.set_title(f"{work.model} on {machines}: {bandwidth:,.0f} GB/s of memory bandwidth")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    return figure


def intensities(work: Work) -> dict[str, tuple[float, str]]:
    """Return the operations per byte of a training step and of calls, with their data type."""
    training, online = work.training, work.online
    flops = training.flops_per_unit * training.step_units
    weights = online.variants[0].weight_bytes
    step = flops / max(training.bytes_per_step, 1.0)
    found = {"a training step": (step, training.data_type)}
    for name, units in ((f"one {work.unit[:-1]}", 1), (f"{online.call_units} at a time", None)):
        count = units or online.call_units
        moved = weights + count * online.bytes_per_unit
        intensity = count * online.flops_per_unit / max(moved, 1.0)
        found[name] = (intensity, online.variants[0].data_type)
    return {name: value for name, value in found.items() if value[0] > 0}


def cost_figure(work: Work, verdicts: Sequence[Verdict]) -> "Figure":
    """Draw what a million units cost by load, on each machine with a price.

    A reserved machine is paid while it waits, so its line falls until it is full; there it ends.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.0), layout="constrained")
    axes = figure.subplots()
    for number, verdict in enumerate(verdicts):
        sheet = verdict.sheet
        price, speed = sheet.machines.dollars_per_hour, sheet.cells["online"]["speed"]
        if price is None:
            continue
        rate = next(each.value for each in speed if each.unit == "per second")
        loads = [rate * 10 ** (-4 * n / POINTS) for n in range(POINTS + 1)]
        costs = [cost_per_million(price, rate, load).reservation for load in loads]
        axes.plot(loads, costs, color=f"C{number}", label=f"{sheet.machines}, ${price:g} an hour")
        axes.plot(loads[:1], costs[:1], "o", color=f"C{number}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"{work.unit} per second that are asked for")
    axes.set_ylabel(f"dollars a million {work.unit}")
    axes.set_title(f"{work.model}: cost against load of a reserved machine; the dot is full load")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def accuracy_figure(measurements: Sequence[Measurement]) -> "Figure":
    """Draw each estimate with its interval against its measurement, for each quantity."""
    from matplotlib.figure import Figure

    names = [name for name in QUANTITIES if any(each.quantity == name for each in measurements)]
    lines = math.ceil(len(names) / PICTURES_OF_A_LINE)
    figure = Figure(figsize=(4 * PICTURES_OF_A_LINE, 3.9 * lines), layout="constrained")
    places = list(figure.subplots(lines, PICTURES_OF_A_LINE, squeeze=False).flat)
    for axes in places[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(places, names, strict=False):
        own = [each for each in measurements if each.quantity == name]
        measured = [each.measured for each in own]
        bounded = [each for each in own if each.low > 0 and each.high < float("inf")]
        axes.vlines(
            [each.measured for each in bounded],
            [each.low for each in bounded],
            [each.high for each in bounded],
            color="C0",
            alpha=0.5,
        )
        axes.plot(measured, [each.estimate for each in own], "o", color="C0", markersize=4)
        ends = [min(measured) / 2, max(measured) * 2]
        axes.plot(ends, ends, "--", color="black", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(QUANTITIES[name].words, fontsize="medium")
        axes.set_xlabel(f"measured, {QUANTITIES[name].unit}")
        axes.set_ylabel("estimated")
        axes.tick_params(which="both", labelsize="small")
        axes.tick_params(axis="x", which="both", labelrotation=60)
        axes.grid(alpha=0.3)
    return figure
