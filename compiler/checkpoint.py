"""Hugging Face checkpoints: a folder with config.json and weights in one safetensors file or several shards."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from compiler.model_config import model_spec
from compiler.model_spec import ModelSpec
from compiler.quantised import QuantisedMatrix, quantisation_of, quantised_matrices, unused_parts
from compiler.tensor_table import MATRICES, Entry, tensor_table, unknown_tensors
from golden.weight_formats import PackedWeights, WeightFormat
from util import checks, files

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES: Mapping[str, str] = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}  # NumPy types of the stored values
PART_DTYPES: Mapping[str, Any] = {  # of the parts of quantised matrices
    "BF16": ml_dtypes.bfloat16, "F16": "<f2", "F32": "<f4", "I32": "<i4", "F8_E4M3": "u1"
}  # fmt: skip


class CheckpointError(ValueError):
    """Folder that is not a complete checkpoint of a supported model. The message is one line and names the folder."""

    def __init__(self, path: Path, problem: str):
        super().__init__(f"checkpoint {str(path)!r}: {problem}")


@dataclass(frozen=True)
class _Stored:
    """A tensor in a file: number of the file, dtype, shape, first byte and byte after the last one."""

    file: int
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Checkpoint:
    """Weights and description of a model in the folder `path`.

    `spec` describes the model. `table` maps the names of this project (`compiler.tensor_table`) to tensors of the
    checkpoint. `names` are all tensors of the checkpoint; a quantised matrix (`compiler.quantised`) is one tensor, with
    the name that it has in a checkpoint that is not quantised.

    The files are memory-mapped. Opening reads the contents tables only, and checks the names, dtypes and shapes of all
    tensors. Raises CheckpointError if a file is missing, damaged, or contradicts config.json, or if the model has a
    property that is not supported.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        config = self._json("config.json")
        generation = self._json("generation_config.json") if (self.path / "generation_config.json").exists() else None
        try:
            self.spec: ModelSpec = model_spec(config, generation)
            quantisation = quantisation_of(config)
        except ValueError as error:
            raise CheckpointError(self.path, str(error)) from None
        self._files: list[Path] = []
        self._tensors: dict[str, _Stored] = {}  # that are not part of a quantised matrix
        self._parts: dict[str, _Stored] = {}
        self._matrices: dict[str, QuantisedMatrix] = {}
        self._maps: dict[int, np.ndarray] = {}
        if (self.path / WEIGHTS).exists():
            self._add(WEIGHTS, None)
        elif (self.path / INDEX).exists():
            for shard, tensors in self._shards().items():
                self._add(shard, tensors)
        else:
            raise CheckpointError(self.path, f"must hold {WEIGHTS} or {INDEX}, got neither")
        if quantisation is not None:
            try:
                self._matrices = quantised_matrices(quantisation, self._tensors)
            except ValueError as error:
                raise CheckpointError(self.path, str(error)) from None
            for matrix in self._matrices.values():
                self._parts |= {name: self._tensors.pop(name) for name in matrix.parts.values()}
            for name in unused_parts(self._tensors):
                del self._tensors[name]
        self.names = tuple(sorted({*self._tensors, *self._matrices}))
        self.table: Mapping[str, Entry] = tensor_table(self.spec, self.names)
        self._validate()

    def _json(self, name: str) -> Any:
        if not (self.path / name).is_file():
            raise CheckpointError(self.path, f"{name} is missing")
        try:
            return files.read_json(self.path / name, "file")
        except ValueError as error:
            raise CheckpointError(self.path, str(error)) from None

    def _shards(self) -> dict[str, list[str]]:
        """Tensors of each shard in the index."""
        index = self._json(INDEX)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(self.path, f"{INDEX} must have the key weight_map with the shard of each tensor")
        shards: dict[str, list[str]] = {}
        for tensor, shard in weight_map.items():
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                raise CheckpointError(self.path, f"shard of {tensor} in {INDEX} must be a file name, got {shard!r}")
            shards.setdefault(shard, []).append(tensor)
        return shards

    def _add(self, name: str, tensors: list[str] | None) -> None:
        """Read the contents of a file, without its data. `tensors` are those that the index places in it; None: all."""
        path = self.path / name
        if not path.is_file():
            raise CheckpointError(self.path, f"{name} is missing")
        try:
            with safetensors.safe_open(path, framework="np") as file:  # checks offsets, sizes and length
                stored = list(file.keys())
            with path.open("rb") as raw:
                size = int.from_bytes(raw.read(8), "little")
                contents = json.loads(raw.read(size))
        except OSError as error:
            raise CheckpointError(self.path, f"{name}: {(error.strerror or str(error)).lower()}") from None
        except safetensors.SafetensorError as error:
            problem = f"{name} is truncated or no safetensors file ({str(error).splitlines()[0]})"
            raise CheckpointError(self.path, problem) from None
        for tensor in stored if tensors is None else tensors:
            if tensor not in contents:
                raise CheckpointError(self.path, f"{name} must hold {tensor}, as {INDEX} says, got no such tensor")
            entry = contents[tensor]
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            self._tensors[tensor] = _Stored(len(self._files), entry["dtype"], tuple(entry["shape"]), start, end)
        self._files.append(path)

    def _validate(self) -> None:
        """Names, dtypes and shapes of all tensors of the model."""
        for entry in self.table.values():
            if entry.name not in self._tensors and entry.name not in self._matrices:
                raise CheckpointError(self.path, f"tensor {entry.name} of shape {entry.shape} is missing")
            stored = self._stored(entry.name)
            if stored.dtype not in DTYPES:
                options = ", ".join(DTYPES)
                raise CheckpointError(self.path, f"{entry.name} must be one of {options}, got {stored.dtype}")
            if stored.shape != entry.shape:
                problem = f"{entry.name} must have shape {entry.shape}, as config.json says, got {stored.shape}"
                raise CheckpointError(self.path, problem)
        if unknown := unknown_tensors(self.spec, self.table, self.names):
            problem = f"tensor {unknown[0]} does not belong to the model that config.json describes"
            raise CheckpointError(self.path, problem)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor `name` of the checkpoint. ValueError if there is none."""
        return self._stored(name).shape

    def tensor(self, name: str) -> np.ndarray:
        """BF16 bit patterns of the tensor `name` of the checkpoint, uint16 in its shape. ValueError if there is none.

        A BF16 tensor is a read-only view of the file. F16 and F32 values are rounded to nearest, ties to even.
        """
        if name in self._matrices:
            return self._matrices[name].codes(self._part)
        return _codes(self._values(name), self._stored(name).dtype)

    def load(self, key: str) -> np.ndarray:
        """BF16 bit patterns, uint16, of the tensor with the name `key` of this project. ValueError if there is none."""
        if key not in self.table:
            raise ValueError(f"key must be a tensor of the {self.spec.family} model, got {key!r}")
        entry = self.table[key]
        rows = slice(*entry.rows) if entry.rows else slice(None)
        if entry.name in self._matrices:
            return self.tensor(entry.name)[rows]
        return _codes(self._values(entry.name)[rows], self._stored(entry.name).dtype)

    def packed(self, key: str, form: WeightFormat) -> PackedWeights | None:
        """Codes and scales of the tensor `key` as the checkpoint stores them, (outputs, inputs).

        None: it is not quantised, or in another format than `form`. Raises ValueError if `form` cannot hold its scales.
        """
        entry = self.table[key]
        matrix = self._matrices.get(entry.name)
        if matrix is None or matrix.format != form.name:
            return None
        return matrix.packed(self._part)[slice(*entry.rows) if entry.rows else slice(None)]

    def layer_matrix(self, layer: int, matrix: str) -> np.ndarray:
        """Matrix (outputs, inputs) of a decoder layer: q, k, v, o, gate, up or down. uint16 BF16 bit patterns."""
        return self.load(self._layer_key(layer, matrix))

    def layer_bias(self, layer: int, matrix: str) -> np.ndarray | None:
        """Bias (outputs,) of a matrix of a decoder layer, uint16 BF16 bit patterns; None: it has no bias."""
        key = f"{self._layer_key(layer, matrix)}_bias"
        return self.load(key) if key in self.table else None

    def layer_norms(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights (hidden,) of the norms before the attention and before the feed-forward layer, uint16."""
        checks.integer("layer", layer, 0, self.spec.text.layers - 1)
        return self.load(f"layers.{layer}.attention_norm"), self.load(f"layers.{layer}.ffn_norm")

    def embedding(self) -> np.ndarray:
        """Embedding (vocabulary, hidden), uint16 BF16 bit patterns."""
        return self.load("embedding")

    def final_norm(self) -> np.ndarray:
        """Weights (hidden,) of the norm after the last decoder layer, uint16 BF16 bit patterns."""
        return self.load("final_norm")

    def lm_head(self) -> np.ndarray:
        """LM head (vocabulary, hidden), uint16 BF16 bit patterns; the embedding if it is tied."""
        return self.load("lm_head")

    def fingerprint(self) -> int:
        """Number of the model, 1 to 2**32 - 1, CRC-32 of the norms and of the last key matrix."""
        last, number = self.spec.text.layers - 1, 0
        for key in ("final_norm", f"layers.{last}.attention_norm", f"layers.{last}.ffn_norm", f"layers.{last}.k"):
            number = zlib.crc32(self.load(key).tobytes(), number)
        return number or 1

    def _layer_key(self, layer: int, matrix: str) -> str:
        checks.integer("layer", layer, 0, self.spec.text.layers - 1)
        return f"layers.{layer}.{checks.one_of('matrix', matrix, MATRICES)}"

    def _stored(self, name: str) -> _Stored | QuantisedMatrix:
        stored = self._matrices.get(name) or self._tensors.get(name)
        if stored is None:
            raise ValueError(f"name must be a tensor of checkpoint {str(self.path)!r}, got {name!r}")
        return stored

    def _values(self, name: str) -> np.ndarray:
        """Stored values of a tensor that is not quantised, a view of its file."""
        stored = self._stored(name)
        assert isinstance(stored, _Stored)
        if stored.dtype not in DTYPES:
            raise ValueError(f"{name} must be one of {', '.join(DTYPES)}, got {stored.dtype}")
        return self._view(stored, DTYPES[stored.dtype])

    def _part(self, name: str) -> np.ndarray:
        """Stored values of a part of a quantised matrix, a view of its file."""
        stored = self._parts[name]
        return self._view(stored, PART_DTYPES[stored.dtype])

    def _view(self, stored: _Stored, dtype: Any) -> np.ndarray:
        if stored.file not in self._maps:
            self._maps[stored.file] = np.asarray(np.memmap(self._files[stored.file], np.uint8, "r"))
        content = self._maps[stored.file][stored.start : stored.end]
        return content.view(dtype).reshape(stored.shape)


def _codes(values: np.ndarray, dtype: str) -> np.ndarray:
    """BF16 bit patterns of stored values."""
    if dtype == "BF16":
        return values
    with np.errstate(over="ignore", invalid="ignore"):  # infinity above the largest BF16 number; signalling NaN
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)
