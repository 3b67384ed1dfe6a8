"""Why a decoder cannot be served as it is by paged attention."""

from collections.abc import Collection, Sequence

from millrace.export.openvino.decoder_attention import Attended

ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers that keep keys and values of each token; which of them fit is asked later."""


def unlike(kinds: Collection[str], takes: Collection[str], alibi: bool) -> str | None:
    """Return why a decoder is none of keys, values and positions, or None if it may be one.

    Args:
        kinds: of its layers, as its config names them; empty where it does not.
        takes: names of what its forward takes.
        alibi: whether its config says that its scores are shifted by distance.
    """
    other = sorted({kind for kind in kinds if kind not in ATTENTION})
    if other or "past_key_values" not in takes:
        has = f"layers of {', '.join(other)}" if other else "no keys and values"
        return f"it has {has}: linear attention, state spaces and the like are not served"
    if alibi or "position_ids" not in takes:
        return "its attention scores are shifted by distance (ALiBi)"
    return None


def refusal(layers: int, context: int | None, seen: Sequence[Attended]) -> str | None:
    """Return why the engine would not compute what the decoder does, or None.

    Its paged attention is plain and causal: nothing bounds or shifts a score, and every token sees
    all before it.

    Args:
        layers: layers of the decoder.
        context: tokens of the longest text; None if the decoder does not say.
        seen: what each layer asked of attention; empty where the decoder has a way of its own.
    """
    if seen and len(seen) != layers:
        return f"{len(seen)} attentions for {layers} layers: some layers are of another kind"
    windows = [each.sliding_window for each in seen if each.sliding_window is not None]
    if windows and (context is None or min(windows) < context):
        has = "any length" if context is None else f"{context:,} tokens"
        return f"its attention looks back {min(windows):,} tokens only, and its context is {has}"
    if any(each.softcap is not None for each in seen):
        return "its attention scores are soft-capped"
    if any(each.sinks for each in seen):
        return "its attention has sinks"
    if any(each.biased for each in seen):
        return "its attention adds a bias of its own to the scores"
    return None


def other_kind(layers: int, cached: int, attentions: int | None = None) -> str | None:
    """Return why layers are not all attention over keys and values, or None if they are.

    Args:
        layers: layers of the decoder.
        cached: layers that keep keys and values.
        attentions: attention operations of its graph; None if they were not counted.
    """
    if cached != layers:
        return (
            f"{cached} of its {layers} layers keep keys and values: "
            "linear attention and state spaces are not served"
        )
    if attentions is not None and attentions != layers:
        return f"its graph has {attentions} attention operations for {layers} layers"
    return None
