"""The terms of what a run, a certificate and a batch job measure, by quantity."""

from collections.abc import Mapping
from dataclasses import replace

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.estimates import Name
from millrace.models.planner.fit import Terms
from millrace.models.planner.work import Variant, Work
from millrace.models.planner.work_terms import (
    job_terms,
    latency_terms,
    serving_memory_terms,
    training_memory_terms,
    training_step_terms,
    unit_terms,
)


def training_terms(work: Work, machines: Machines) -> Mapping[Name, Terms]:
    """Return the terms of what a training measures."""
    training = work.training
    on_gpu = not machines.device.is_cpu
    return {
        "training_step": training_step_terms(training, machines),
        "training_memory": training_memory_terms(training, work.online.engine, on_gpu=on_gpu),
    }


def online_terms(work: Work, variant: Variant, machines: Machines) -> Mapping[Name, Terms]:
    """Return the terms of what the export measures: one instance with nothing beside it."""
    alone = replace(work.online, instances=1)
    # The prompts that a decoder is measured with are as long as their answers.
    read = 1.0 if alone.measured_prompt else 0.0
    return {
        "online_call": latency_terms(alone, variant, alone.measured_prompt, machines),
        "online_unit": unit_terms(alone, variant, machines, read),
        "online_memory": serving_memory_terms(alone, variant),
    }


def batch_terms(
    work: Work, variant: Variant, machines: Machines, units: float, generated: float
) -> Mapping[Name, Terms]:
    """Return the terms of what a batch job measures.

    Args:
        work: what the pipeline asks for.
        variant: the variant that scores.
        machines: the machines.
        units: rows, or tokens read and generated.
        generated: rows, or tokens generated.
    """
    job = work.batch
    return {"batch_job": job_terms(job, variant, units, generated / job.call_units, machines)}
