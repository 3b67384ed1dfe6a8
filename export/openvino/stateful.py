"""Turns the past of a converted decoder, inputs and outputs, into its state."""

from typing import Any

import numpy as np

FIRST = ("input_ids", "attention_mask", "position_ids")
BEAM = "beam_idx"


def made_stateful(ir: Any, layers: int) -> Any:
    """Name what goes in and out, and make the keys and values state.

    The engine looks for these names. `beam_idx` chooses rows of the past, and every state has an
    empty start by the batch's size: without one the engine finds a parameter that nobody declared.

    Args:
        ir: inputs `FIRST` and then of each layer keys and values; outputs logits and likewise.
        layers: layers of the decoder.
    """
    from openvino._offline_transformations import apply_make_stateful_transformation

    kept = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    pasts, presents = [f"past_key_values.{n}" for n in kept], [f"present.{n}" for n in kept]
    parameters = dict(zip((*FIRST, *pasts), ir.get_parameters(), strict=True))
    for name, parameter in parameters.items():
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
    for name, output in zip(("logits", *presents), ir.outputs, strict=True):
        output.get_tensor().set_names({name})
    _choose_rows(ir, [parameters[name] for name in pasts])
    apply_make_stateful_transformation(ir, dict(zip(pasts, presents, strict=True)))
    _start_empty(ir, parameters[FIRST[0]])
    ir.validate_nodes_and_infer_types()
    return ir


def _choose_rows(ir: Any, pasts: list[Any]) -> None:
    """Put a Gather by `beam_idx` behind each past."""
    from openvino import opset13 as ops

    beam = ops.parameter([-1], dtype=np.int32, name=BEAM)
    beam.output(0).get_tensor().set_names({BEAM})
    ir.add_parameters([beam])
    for past in pasts:
        users = past.output(0).get_target_inputs()
        chosen = ops.gather(past, beam, ops.constant(0, dtype=np.int64))
        for user in users:
            user.replace_source_output(chosen.output(0))
    ir.validate_nodes_and_infer_types()


def _start_empty(ir: Any, input_ids: Any) -> None:
    """Give each state its start: no tokens, `[batch, heads, 0, width]`."""
    from openvino import opset13 as ops

    shape = ops.shape_of(input_ids, output_type="i64")
    batch = ops.gather(shape, ops.constant([0]), ops.constant(0))
    for op in ir.get_ops():
        if op.get_type_name() == "ReadValue":
            _, heads, _, width = op.get_output_partial_shape(0)
            lengths = (heads.get_length(), 0, width.get_length())
            sizes = [batch, *(ops.constant(np.array([n], np.int64)) for n in lengths)]
            zero = ops.constant(0.0, dtype=op.get_output_element_type(0).to_dtype())
            op.set_arguments([ops.broadcast(zero, ops.concat(sizes, axis=0))])


def paged_attentions(ir: Any) -> int:
    """Return in how many layers the engine's own transformation finds attention; 0 if it fails."""
    from openvino._offline_transformations import paged_attention_transformation

    tried = ir.clone()
    try:
        paged_attention_transformation(tried)
    except RuntimeError:
        return 0
    return sum(op.get_type_name() == "PagedAttentionExtension" for op in tried.get_ops())
