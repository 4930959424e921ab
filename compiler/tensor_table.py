"""Names of this project for the tensors of a model, and their names and shapes in a Hugging Face checkpoint.

Names of this project, where N is a layer from 0 on:

embedding, final_norm, lm_head                             text decoder
layers.N.{q, k, v, o, gate, up, down}                      matrices (outputs, inputs) of a decoder layer
layers.N.{q_bias, k_bias, v_bias}                          biases, of models that have them
layers.N.{attention_norm, ffn_norm}                        weights of the two norms
vision.{patch, patch_bias, class_token, positions}         embedding of patches
vision.{input_norm, input_norm_bias}                       norm after the embedding
vision.layers.N.{q, k, v, o, gate, up, down}               matrices of a vision layer; with `_bias`: its bias
vision.layers.N.{attention_norm, ffn_norm}                 norms; with `_bias`: the bias of a layer norm
projector.{norm, linear_1, linear_2}                       projector; with `_bias`: biases of the matrices

Only tensors that the model has are in the table. A checkpoint can have one of several prefixes, because versions of
transformers differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.model_spec import ModelSpec, ProjectorSpec, TextSpec, VisionSpec

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
# buffers that can be computed from config.json, and parts of a vision tower after the last layer
NOT_WEIGHTS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|rotary_pos_emb\.inv_freq|embeddings\.position_ids)")
AFTER_LAYERS = re.compile(r"(model\.)?vision_tower\.(vision_model\.)?(post_layernorm|head)\..*")


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint: its name, its shape, and the range of rows that is meant (None: all)."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


Table = dict[str, Entry]


def _linear(table: Table, key: str, name: str, outputs: int, inputs: int, bias: bool) -> None:
    table[key] = Entry(f"{name}.weight", (outputs, inputs))
    if bias:
        table[f"{key}_bias"] = Entry(f"{name}.bias", (outputs,))


def _norm(table: Table, key: str, name: str, size: int, bias: bool) -> None:
    table[key] = Entry(f"{name}.weight", (size,))
    if bias:
        table[f"{key}_bias"] = Entry(f"{name}.bias", (size,))


def text_table(text: TextSpec, prefix: str, lm_head: str) -> Table:
    """Entries of the text decoder; `prefix` precedes the names of all tensors except that of the LM head."""
    embedding = Entry(f"{prefix}embed_tokens.weight", (text.vocabulary, text.hidden))
    table = {
        "embedding": embedding,
        "final_norm": Entry(f"{prefix}norm.weight", (text.hidden,)),
        "lm_head": embedding if text.tied_embeddings else Entry(lm_head, embedding.shape),
    }
    q, kv = text.q_heads * text.head_dim, text.kv_heads * text.head_dim
    for layer in range(text.layers):
        key, name = f"layers.{layer}.", f"{prefix}layers.{layer}."
        for matrix, outputs in (("q", q), ("k", kv), ("v", kv)):
            _linear(table, key + matrix, f"{name}self_attn.{matrix}_proj", outputs, text.hidden, text.qkv_bias)
        _linear(table, f"{key}o", f"{name}self_attn.o_proj", text.hidden, q, False)
        _linear(table, f"{key}gate", f"{name}mlp.gate_proj", text.ffn, text.hidden, False)
        _linear(table, f"{key}up", f"{name}mlp.up_proj", text.ffn, text.hidden, False)
        _linear(table, f"{key}down", f"{name}mlp.down_proj", text.hidden, text.ffn, False)
        _norm(table, f"{key}attention_norm", f"{name}input_layernorm", text.hidden, False)
        _norm(table, f"{key}ffn_norm", f"{name}post_attention_layernorm", text.hidden, False)
    return table


def clip_embedding(vision: VisionSpec, prefix: str) -> Table:
    """Entries before the first layer of a CLIP or SigLIP tower."""
    name = f"{prefix}embeddings."
    shape = (vision.hidden, vision.channels, vision.patch_size, vision.patch_size)
    table = {
        "vision.patch": Entry(f"{name}patch_embedding.weight", shape),
        "vision.positions": Entry(f"{name}position_embedding.weight", (vision.positions, vision.hidden)),
    }
    if vision.patch_bias:
        table["vision.patch_bias"] = Entry(f"{name}patch_embedding.bias", (vision.hidden,))
    if vision.class_token:
        table["vision.class_token"] = Entry(f"{name}class_embedding", (vision.hidden,))
    if vision.input_norm:
        _norm(table, "vision.input_norm", f"{prefix}pre_layrnorm", vision.hidden, True)  # spelled so in checkpoints
    return table


def clip_layers(vision: VisionSpec, prefix: str, layers: Iterable[int]) -> Table:
    """Entries of layers of a CLIP or SigLIP tower."""
    table: Table = {}
    for layer in layers:
        key, name = f"vision.layers.{layer}.", f"{prefix}encoder.layers.{layer}."
        for matrix in ("q", "k", "v", "o"):
            projection = "out_proj" if matrix == "o" else f"{matrix}_proj"
            _linear(table, key + matrix, f"{name}self_attn.{projection}", vision.hidden, vision.hidden, True)
        _linear(table, f"{key}up", f"{name}mlp.fc1", vision.ffn, vision.hidden, True)
        _linear(table, f"{key}down", f"{name}mlp.fc2", vision.hidden, vision.ffn, True)
        _norm(table, f"{key}attention_norm", f"{name}layer_norm1", vision.hidden, True)
        _norm(table, f"{key}ffn_norm", f"{name}layer_norm2", vision.hidden, True)
    return table


def qwen_vision(vision: VisionSpec, projector: ProjectorSpec, prefix: str) -> Table:
    """Entries of the vision tower of Qwen2.5-VL and of its patch merger."""
    patch = (vision.channels, vision.temporal_patch, vision.patch_size, vision.patch_size)
    table = {"vision.patch": Entry(f"{prefix}patch_embed.proj.weight", (vision.hidden, *patch))}
    hidden = vision.hidden
    for layer in range(vision.layers):
        key, name = f"vision.layers.{layer}.", f"{prefix}blocks.{layer}."
        for number, matrix in enumerate(("q", "k", "v")):  # rows of one matrix
            rows = (number * hidden, (number + 1) * hidden)
            table[key + matrix] = Entry(f"{name}attn.qkv.weight", (3 * hidden, hidden), rows)
            table[f"{key}{matrix}_bias"] = Entry(f"{name}attn.qkv.bias", (3 * hidden,), rows)
        _linear(table, f"{key}o", f"{name}attn.proj", hidden, hidden, True)
        _linear(table, f"{key}gate", f"{name}mlp.gate_proj", vision.ffn, hidden, True)
        _linear(table, f"{key}up", f"{name}mlp.up_proj", vision.ffn, hidden, True)
        _linear(table, f"{key}down", f"{name}mlp.down_proj", hidden, vision.ffn, True)
        _norm(table, f"{key}attention_norm", f"{name}norm1", hidden, False)
        _norm(table, f"{key}ffn_norm", f"{name}norm2", hidden, False)
    table["projector.norm"] = Entry(f"{prefix}merger.ln_q.weight", (hidden,))
    _linear(table, "projector.linear_1", f"{prefix}merger.mlp.0", projector.hidden, projector.inputs, projector.bias)
    _linear(table, "projector.linear_2", f"{prefix}merger.mlp.2", projector.outputs, projector.hidden, projector.bias)
    return table


def llava_projector(projector: ProjectorSpec, prefix: str) -> Table:
    """Entries of the projector of LLaVA."""
    table: Table = {}
    _linear(table, "projector.linear_1", f"{prefix}linear_1", projector.hidden, projector.inputs, projector.bias)
    _linear(table, "projector.linear_2", f"{prefix}linear_2", projector.outputs, projector.hidden, projector.bias)
    return table


def _best(candidates: Sequence[Table], names: Collection[str]) -> Table:
    """The candidate with the most tensors in the checkpoint, the first one if several have equally many."""
    return max(candidates, key=lambda table: sum(entry.name in names for entry in table.values()))


def tensor_table(spec: ModelSpec, names: Collection[str]) -> Table:
    """Entries of a model by their names of this project, with the prefixes that the names of a checkpoint have."""
    text = [("model.", "lm_head.weight")]
    if spec.family == "llava":
        text = [("language_model.model.", "language_model.lm_head.weight"), ("model.language_model.", "lm_head.weight")]
    elif spec.family == "qwen2.5-vl":
        text.append(("model.language_model.", "lm_head.weight"))
    table = _best([text_table(spec.text, prefix, lm_head) for prefix, lm_head in text], names)
    vision, projector = spec.vision, spec.projector
    if vision is None or projector is None:
        return table
    if spec.family == "qwen2.5-vl":
        towers = [qwen_vision(vision, projector, prefix) for prefix in ("visual.", "model.visual.")]
        return table | _best(towers, names)
    towers = [
        clip_embedding(vision, prefix) | clip_layers(vision, prefix, range(spec.vision_layers))
        for prefix in vision_prefixes()
    ]
    projectors = [llava_projector(projector, f"{prefix}multi_modal_projector.") for prefix in ("", "model.")]
    return table | _best(towers, names) | _best(projectors, names)


def vision_prefixes() -> tuple[str, ...]:
    """Prefixes of the vision tower of LLaVA, from the oldest version of transformers to the newest."""
    tower = "vision_tower."
    return f"{tower}vision_model.", f"model.{tower}vision_model.", tower, f"model.{tower}"


def unknown_tensors(spec: ModelSpec, table: Mapping[str, Entry], names: Collection[str]) -> list[str]:
    """Sorted names of tensors in a checkpoint that the model described by `spec` does not have.

    Tensors that inference does not need are known: buffers, an LM head beside tied embeddings, vision layers after the
    feature layer, and what follows the last vision layer.
    """
    known = {entry.name for entry in table.values()}
    if spec.text.tied_embeddings:
        known |= {"lm_head.weight", "language_model.lm_head.weight"}
    if spec.family == "llava" and spec.vision is not None:
        later = range(spec.vision_layers, spec.vision.layers)
        for prefix in vision_prefixes():
            known |= {entry.name for entry in clip_layers(spec.vision, prefix, later).values()}
    remaining = (name for name in names if name not in known and not NOT_WEIGHTS.fullmatch(name))
    return sorted(name for name in remaining if not (spec.vision and AFTER_LAYERS.fullmatch(name)))
