"""What the training and the serving of boosted trees ask of a machine."""

import math

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.planner.work import ServingWork, TrainingWork, Variant, Work
from millrace.tasks.kinds.data_facts import ReadFacts, require_facts
from millrace.tasks.kinds.gradient_boosting.boosting_params import DEPTH, ROUNDS
from millrace.tasks.kinds.graph.graph_plan import nightly_of, nightly_rows

FLOAT = 4
MOST_ROWS = 10**6
"""Rows that are assumed where nobody has counted them yet."""
NODE_BYTES = 40
"""Bytes of a node in an ONNX TreeEnsemble, about: feature, threshold, both children and weight."""
OPERATIONS_OF_A_NODE = 2
"""Operations of a row in a node: a comparison, and an addition at a leaf."""


def plan_trees(pipeline: Pipeline, installation: Installation, read_facts: ReadFacts) -> Work:
    """Return what boosted trees ask for.

    A tree of depth d has at most 2^d leaves; a round grows one tree for each class of more than
    two. Histogram training reads every feature of a row once a level (Chen and Guestrin 2016,
    "XGBoost", 1603.02754; Ke et al. 2017, "LightGBM").

    Args:
        pipeline: the pipeline.
        installation: not needed.
        read_facts: reads what is known of the data.

    Raises:
        InputError: the data's columns are not known.
    """
    facts = require_facts(read_facts)
    params = pipeline.model.params
    rounds, depth = int(params.get("n_estimators", ROUNDS)), int(params.get("max_depth") or DEPTH)
    outputs = facts.outputs if facts.outputs > 2 else 1
    trees = rounds * outputs
    # A leaf has at least one row, so a deep tree has fewer nodes than its depth allows.
    most = 2 * max(1, facts.train_rows or MOST_ROWS)
    depth = min(depth, math.ceil(math.log2(most)))
    nodes = trees * min(2 ** (depth + 1), most)
    width, rows = facts.in_features, facts.train_rows
    spec, serving = pipeline.training, pipeline.serving
    walk = float(trees * depth * OPERATIONS_OF_A_NODE)
    row_bytes = float(width * FLOAT)
    held = row_bytes * (rows or 0) / spec.workers
    online = ServingWork(
        variants=(Variant("onnx-fp32", "fp32", float(nodes * NODE_BYTES)),),
        flops_per_unit=walk,
        bytes_per_unit=float(trees * depth * NODE_BYTES),
        function_elements=float(trees * depth),
        kernels=3,
        input_bytes=row_bytes,
        output_bytes=float(FLOAT * facts.outputs),
        call_units=serving.max_batch_size,
        instances=serving.instance_count,
        threads=serving.intra_op_thread_count,
        engine="trees",
    )
    return Work(
        model=pipeline.name,
        unit="rows",
        parameters=nodes,
        training=TrainingWork(
            workers=spec.workers,
            step_units=(rows or 0) / spec.workers,
            steps=rounds if rows is not None else None,
            flops_per_unit=float(depth * width * OPERATIONS_OF_A_NODE * outputs),
            memory={"rows": held, "binned rows": held / FLOAT, "trees": float(nodes * NODE_BYTES)},
            bytes_per_step=held / FLOAT * depth * outputs,
            kernels=depth * outputs,
            gradient_bytes=float(nodes / trees / 2 * width * 256 * 2 * FLOAT),
            data_type="fp32",
            bytes_per_unit=facts.row_bytes or row_bytes,
            checkpoint_bytes=float(nodes * NODE_BYTES),
            engine="xgboost",
            strategy="rows are split, histograms are summed",
            threads=None,
        ),
        online=online,
        batch=nightly_of(online, pipeline, facts),
        batch_units=nightly_rows(pipeline, facts),
    )
