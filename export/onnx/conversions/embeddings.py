"""Quantizes embedding tables to int8, with one scale per token.

ONNX Runtime's own quantization has one scale for the whole table, and a statically quantized model
dequantizes the whole table in every run. Here the rows of the tokens are looked up first, and only
these rows are dequantized.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

LEAST = 256
"""Smallest number of rows of a table that is quantized."""


def quantize_tables(path: Path) -> None:
    """Replace every large embedding table of a model file by int8 values and scales, in place."""
    model = onnx.load(path)
    graph = model.graph
    tables = {each.name: each for each in graph.initializer if _is_table(each)}
    nodes: list[NodeProto] = []
    for node in graph.node:
        table = tables.get(node.input[0]) if node.op_type == "Gather" else None
        by_row = all(attribute.i == 0 for attribute in node.attribute)
        nodes += [node] if table is None or not by_row else _looked_up(node, table.name)
    used = {name for node in nodes for name in node.input}
    for name, table in tables.items():
        if f"{name}.int8" in used:
            graph.initializer.extend(_quantized(table))
            if name not in used:
                graph.initializer.remove(table)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)


def _is_table(tensor: TensorProto) -> bool:
    is_float = tensor.data_type == TensorProto.FLOAT
    return is_float and len(tensor.dims) == 2 and tensor.dims[0] >= LEAST


def _quantized(table: TensorProto) -> Iterator[TensorProto]:
    weights = numpy_helper.to_array(table)
    scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True), 1e-12) / 127
    whole = np.rint(weights / scale).astype(np.int8)
    yield numpy_helper.from_array(whole, f"{table.name}.int8")
    yield numpy_helper.from_array(scale.astype(np.float32), f"{table.name}.scale")


def _looked_up(node: NodeProto, table: str) -> list[NodeProto]:
    tokens, found = node.input[1], node.output[0]
    return [
        helper.make_node("Gather", [f"{table}.int8", tokens], [f"{found}.int8"], axis=0),
        helper.make_node("Gather", [f"{table}.scale", tokens], [f"{found}.scale"], axis=0),
        helper.make_node("Cast", [f"{found}.int8"], [f"{found}.cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{found}.cast", f"{found}.scale"], [found], name=found),
    ]
