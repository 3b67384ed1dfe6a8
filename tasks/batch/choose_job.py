"""Which job scores with a version, by the kind of model that it is."""

from millrace.models.common.installation import Installation
from millrace.models.common.language_generation import chat_template_of
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.inference.language_engine import engine_of
from millrace.models.inference.row_batches import PLACES
from millrace.models.registry.version_files import FORM, GraphPackage, Package
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.prompts.vllm_job import VllmJob, engine_arguments_of
from millrace.serving.batch.prompts.vllm_workers import engines_of, gpus_of_ray, vllm_version
from millrace.serving.batch.row_job import RowJob

ROWS, PROMPTS = 1024, 256
"""Of one call of the model, where the pipeline file does not say."""


AnyJob = RowJob | PromptJob | VllmJob


def job_of(
    pipeline: Pipeline, package: Package, places: Installation, held: tuple[Column, ...]
) -> AnyJob:
    """Return what scores with a version.

    Args:
        pipeline: how.
        package: the version's files.
        places: where vLLM is, for a form that it opens; Ray must be connected then.
        held: columns as the dataset holds them; none where there is no dataset.

    Raises:
        InputError: Ray has too few GPUs for the form, or no vLLM where its engines would be.
    """
    version, batch = package.version, pipeline.batch
    names = (pipeline.name, version.version, version.digest)
    key = batch.key or pipeline.dataset.key
    if isinstance(package, GraphPackage):
        return RowJob(
            *names,
            package.model,
            package.encoding,
            key,
            held,
            batch.threads_per_actor,
            batch.batch_size or ROWS,
            batch.max_num_batched_tokens or PLACES,
        )
    sampling = Sampling(**batch.sampling.model_dump())
    prompts = (*names, package.folder / FORM, batch.prompt, sampling, key, held)
    template = chat_template_of(package.folder / FORM)
    batch_size, generation = batch.batch_size or PROMPTS, pipeline.serving.generation
    if engine_of(package.files) != "vllm":
        return PromptJob(
            *prompts,
            template=template,
            threads=batch.threads_per_actor,
            max_num_batched_tokens=batch.max_num_batched_tokens,
            cache_size_gib=generation.cache_size_gib,
            batch_size=batch_size,
        )
    engines = engines_of(batch.num_actors, gpus_of_ray(), generation.tensor_parallel_size)
    return VllmJob(
        *prompts,
        arguments=engine_arguments_of(
            package.folder / FORM, generation, batch.max_num_batched_tokens
        ),
        vllm=vllm_version(places.vllm_python),
        python=places.vllm_python,
        engines=engines,
        batch_size=batch_size,
    )
