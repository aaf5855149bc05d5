#!/usr/bin/env python3
"""Runs a classifier written by `kdgat export`, with PyTorch alone: read_student.py FOLDER GRAPHS.safetensors"""
import json, sys
import torch
from torch.nn.functional import leaky_relu, linear, relu

def read(path):  # a safetensors file: length of the header, header, tensors
    data = open(path, "rb").read()
    begin, types = 8 + int.from_bytes(data[:8], "little"), {"F32": torch.float32, "I64": torch.int64}
    header = {name: entry for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}
    part = lambda ends: bytearray(data[begin + ends[0]:begin + ends[1]])
    tensor = lambda entry: torch.frombuffer(part(entry["data_offsets"]), dtype=types[entry["dtype"]])
    return {name: tensor(entry).reshape(entry["shape"]) for name, entry in header.items()}

def attend(w, layer, x, source, target):  # a GAT layer; the edges include self-loops; heads are concatenated
    values = linear(x, w[layer + ".lin.weight"]).view(len(x), *w[layer + ".att_src"].shape[1:])
    score = (values * w[layer + ".att_src"]).sum(-1)[source] + (values * w[layer + ".att_dst"]).sum(-1)[target]
    score, places = leaky_relu(score, 0.2), target[:, None].expand_as(score)
    highest = torch.zeros(len(x), score.shape[1]).scatter_reduce(0, places, score, "amax", include_self=False)
    weight = (score - highest[target]).exp()
    weight = weight / torch.zeros_like(highest).index_add_(0, target, weight)[target]
    mixed = torch.zeros_like(values).index_add_(0, target, weight[..., None] * values[source])
    return mixed.flatten(1) + w[layer + ".bias"]

def logits(w, shape, g):  # [graphs, 2]: normal and attack
    layers = [torch.cat([w["id_embedding.weight"][g["id"]], g["continuous"]], 1)]
    for index in range(shape["layers"]):
        layers.append(relu(attend(w, f"convs.{index}", layers[-1], g["source"], g["target"])))
    nodes, all_layers = torch.bincount(g["graph"]), torch.cat(layers[1:], 1)
    x = torch.zeros(len(nodes), all_layers.shape[1]).index_add_(0, g["graph"], all_layers) / nodes[:, None]
    for index in range(shape["fc_layers"]):
        x = linear(relu(x) if index else x, w[f"fc_layers.{3 * index}.weight"], w[f"fc_layers.{3 * index}.bias"])
    return x

config, graphs = json.load(open(sys.argv[1] + "/config.json")), read(sys.argv[2])
if config["model"] != "gat" or {"edge_scaling", "input"} & set(config["architecture"]):
    sys.exit("this reads classifiers (gat) with window features and a vocabulary; docs/export.md describes the others")
found = logits(read(sys.argv[1] + "/model.safetensors"), config["architecture"], graphs)
# IDs outside the vocabulary; an ID that occurs only as the target of the edge to the next window's first frame does not count
sends = torch.bincount(graphs["source"][graphs["source"] != graphs["target"]], minlength=len(graphs["id"])) > 0
foreign = (graphs["id"] == 0) & (sends | (graphs["continuous"][:, 9] > 0))
unknown = torch.bincount(graphs["graph"], foreign.float()) > 0
found[:, 1] += config.get("foreign_id_evidence", 0) * unknown
for graph, attack in enumerate(found.softmax(1)[:, 1].tolist()): print(graph, f"{attack:.6f}")
if "logits" in graphs: print("largest difference to kdgat's logits:", float((found - graphs["logits"]).abs().max()))
