"""Small stores and caches as the program writes them (docs/store.md), for the tests of their readers."""

import json
import pathlib
import struct
import zlib

import numpy as np

from kdgat.digests import blake3_hex, crc32c


def tensors_file(path: pathlib.Path, tensors: dict) -> None:
    """Writes a safetensors file."""
    names = {"<f8": "F64", "<f4": "F32", "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8"}
    header, end = {"__metadata__": {"format": "kdgat graph store"}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": names[array.dtype.str], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


class SmallGraphs:
    """Graphs of random sizes and numbers, and their store of several shards."""

    def __init__(self, sizes, seed: int = 0, kind: str = "window") -> None:
        """``sizes``: nodes and edges of each graph. ``kind``: ``window``, or ``classes``, ``numbers``, ``node-classes``, ``space`` or ``paths`` of other graphs."""
        random = np.random.default_rng(seed)
        self.kind, self.graphs = kind, []
        # Features of nodes and of edges, of graphs that are no windows.
        self.features = (1, 1) if kind == "node-classes" else (3, 2)
        for nodes, edges in sizes:
            ends = np.sort(random.integers(0, max(1, nodes * nodes), edges)) if nodes else np.zeros(0, np.int64)
            graph = {
                "can_id": np.sort(random.choice(max(3000, nodes), nodes, replace=False)).astype("<u4"),
                "node_features": _columns(random.random((nodes, 10 if kind == "window" else self.features[0])).astype("<f4")),
                "edge_features": _columns(random.random((edges, 11 if kind == "window" else self.features[1])).astype("<f4")),
                "edge_source": (ends % max(1, nodes)).astype("<u2"),
                "edge_target": (ends // max(1, nodes)).astype("<u2"),
                "label": np.array([random.integers(2)], "u1"),
            }
            if kind == "classes":
                graph["graph_targets"] = np.array([random.integers(3)], "<f4")
            if kind in ("numbers", "space", "paths"):
                columns = 2 if kind == "numbers" else 1
                graph["graph_targets"] = _columns(random.random((1, columns)).astype("<f4"))
                graph["target_rests"] = (random.random(graph["graph_targets"].shape) * 1e-9).astype("<f4")
            if kind == "node-classes":
                graph["node_targets"] = np.where(random.random(nodes) < 0.3, np.nan, random.integers(0, 4, nodes)).astype("<f4")
            if kind in ("space", "paths"):
                for name in ("position", "force"):
                    graph[name] = random.random((nodes, 3)).astype("<f4")
                graph["kind"] = random.integers(1, 9, nodes).astype("<u2")
                graph["cell"] = random.random((1, 9)).astype("<f8")
            if kind == "paths":
                for name, count, width in (("angle", 3, 2), ("dihedral", 4, 1)):
                    paths = int(random.integers(0, 4)) if nodes else 0
                    graph[name] = random.integers(0, max(1, nodes), (paths, count)).astype("<u2")
                    graph[f"{name}_parameters"] = _columns(random.random((paths, width)).astype("<f4"))
            self.graphs.append(graph)

    def write(self, folder: pathlib.Path, shards: int = 3) -> pathlib.Path:
        """Writes the store, with a log and a range of training and of validation graphs, and duplicates among the former."""
        folder.mkdir(parents=True)
        entries, first = [], 0
        for number, part in enumerate(np.array_split(np.arange(len(self.graphs)), shards)):
            entries.append(self._write_shard(folder, number, first, [self.graphs[graph] for graph in part]))
            first += len(part)
        count = len(self.graphs)
        log = {"folder": "train", "name": "drive.csv", "role": "train_with_attacks", "first_graph": 0, "graphs": count - 5}
        log["split"] = {"train": [{"start": 2, "end": 7}, {"start": 9, "end": count - 8}], "validation": [{"start": 7, "end": 9}]}
        test = {"folder": "test_01", "name": "drive.csv", "role": "test", "first_graph": count - 5, "graphs": 5, "split": {"train": [], "validation": []}}
        manifest = {
            "format_version": 1,
            "dataset": "small",
            "features": "window" if self.kind == "window" else {"columns": self._columns()},
            "options": {"window": 100},
            "digest": blake3_hex(json.dumps(entries).encode()),
            "totals": {"graphs": count},
            "files": [log, test],
            "vocabulary": list(range(0, 3000, 7)) if self.kind == "window" else [],
            "duplicates": {"dropped": [{"start": 3, "end": 5}]},
            "traceless": [{"start": 6, "end": 8}],
            "shards": entries,
        }
        if self.kind != "window":
            task = "classification" if "classes" in self.kind else "regression"
            classes = {"classes": 3, "node-classes": 4}.get(self.kind, 0)
            targets = [{"name": "y", "classes": [f"class {number}" for number in range(classes)]}]
            manifest["schema"] = {"task": task, "level": "node" if "node" in self.kind else "graph", "targets": targets}
        (folder / "store.json").write_text(json.dumps(manifest))
        return folder

    def _columns(self) -> dict:
        is_space = self.kind in ("space", "paths")
        targets = {"classes": 1, "numbers": 2, "space": 1, "paths": 1}.get(self.kind, 0)
        columns = {"nodes": self.features[0], "edges": self.features[1], "targets": targets, "node_targets": int(self.kind == "node-classes")}
        if is_space:
            columns["space"] = {"positions": True, "cells": True, "forces": True}
        if self.kind == "paths":
            columns["space"]["paths"] = {"angles": 2, "dihedrals": 1}
        return {**columns, "exact_targets": True} if self.kind in ("numbers", "space", "paths") else columns

    def _write_shard(self, folder: pathlib.Path, number: int, first: int, graphs: list) -> dict:
        pointed = {"node": "can_id", "edge": "edge_source", **({"angle": "angle", "dihedral": "dihedral"} if self.kind == "paths" else {})}
        counts = [np.array([len(graph[name]) for graph in graphs], "<u8") for name in pointed.values()]
        tensors = {f"{name}_ptr": np.concatenate([np.zeros(1, "<u8"), np.cumsum(count).astype("<u8")]) for name, count in zip(pointed, counts)}
        tensors.update({name: np.concatenate([graph[name] for graph in graphs]) for name in sorted(graphs[0], key=_width)})
        path = folder / f"shard-{number:05}.safetensors"
        tensors_file(path, tensors)
        content = path.read_bytes()
        nodes, edges, *paths = (int(count.sum()) for count in counts)
        sizes = {"graphs": len(graphs), "nodes": nodes, "edges": edges, "bytes": len(content)}
        if paths:
            sizes["paths"] = dict(zip(("angles", "dihedrals"), paths))
        return {"name": path.name, "first_graph": first, **sizes, "blake3": blake3_hex(content)}


def _columns(values: np.ndarray) -> np.ndarray:
    """Values of one column have one dimension in a file."""
    return values[:, 0] if values.shape[1] == 1 else values


def _width(name: str) -> int:
    """Wide types come first, so that each column is aligned."""
    return {"cell": 0, "edge_source": 2, "edge_target": 2, "kind": 2, "angle": 2, "dihedral": 2, "label": 3}.get(name, 1)


def targets_file(path: pathlib.Path, outputs: list, counts, dataset: str, precision: str = "f32", missing=(), features: str = "") -> list:
    """Writes a cache of targets: ``outputs`` are name, unit and columns. Returns the rows of each output by record."""
    random, dtype = np.random.default_rng(3), "<f4" if precision == "f32" else "<f2"
    key = {name: "" for name in ("teacher_weights", "architecture")}
    key.update(dataset=dataset, features=features, precision=precision, node_counts=blake3_hex(np.asarray(counts, "<u4")))
    key["targets"] = " + ".join(f"{name} [{per}, {columns}]" for name, per, columns in outputs)
    header = json.dumps(key).encode()
    content = struct.pack("<8s4I", b"KDGATTGT", 1, len(header), zlib.crc32(header), 0) + header
    content = _padded(_padded(content) + bytes(int(number not in missing) for number in range(len(counts))))
    rows = []
    for number, nodes in enumerate(counts):
        rows.append([random.random((nodes if per == "nodes" else 1, columns)).astype(dtype) for _, per, columns in outputs])
        record = b"".join(array.tobytes() for array in rows[-1])
        content += record + struct.pack("<I", zlib.crc32(struct.pack("<Q", number) + record))
    path.write_bytes(content)
    return rows


def node_file(path: pathlib.Path, arrays: dict, features: str, columns: int, classes: int = 4, digest: str = "ab" * 32) -> pathlib.Path:
    """Writes the store of one large graph with these arrays."""
    names = {"<u8": "u64", "<u4": "u32", "<i4": "i32", "<f4": "f32", "<f2": "f16", "|u1": "u8"}
    sections, body = [], b""
    for name, array in arrays.items():
        content = _padded(array.tobytes())
        sections.append({"name": name, "dtype": names[array.dtype.str], "offset": len(body), "bytes": array.nbytes, "crc32c": crc32c(content)})
        body += content
    nodes, edges = len(arrays["labels"]), len(arrays["indices"])
    notes = dict.fromkeys(("source_nodes", "listed_edges", "removed_self_loops", "removed_duplicates", "nodes_outside_component", "nodes_without_label"), 0)
    provenance = {"source_digest": "cd" * 32, "options": {}, "notes": {**notes, "ignored_columns": [], "class_names": None, "remarks": []}}
    fields = {"name": "small", "digest": digest, "provenance": provenance, "num_nodes": nodes, "num_edges": edges, "classes": classes}
    description = json.dumps({**fields, "features": features, "columns": columns, "sections": sections}).encode()
    start, rest = b"kdgnodes" + struct.pack("<I", 2), _padded(bytes(24) + description)[16:]
    rest = len(description).to_bytes(8, "little") + rest[8:]
    path.write_bytes(start + struct.pack("<I", crc32c(start + rest)) + rest + body)
    return path


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4096)
