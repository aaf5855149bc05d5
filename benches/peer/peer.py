#!/usr/bin/env python3
"""PyTorch Geometric as a user would write it: the program that kdgat is measured against.

    peer.py train   --model vgae --size student --batch 512 --graphs FILE
    peer.py kd      --model vgae --teacher teacher --batch 512 --graphs FILE    (the teacher runs in every step)
    peer.py cached  --model vgae --teacher teacher --batch 512 --graphs FILE    (targets are computed before)
    peer.py infer   --model gat  --size teacher --batch 512 --graphs FILE
    peer.py score   --size student --batch 1|500 --graphs FILE                  (difficulty)
    peer.py build   --csv FILE.csv                                              (frames to graphs)

Prints one JSON line: median seconds per step, graphs (or frames) per second, peak memory. FILE: graphs as the bench `step`
writes them (x, edge_index local to a graph, node_ptr, edge_ptr, y). README.md explains how to install the packages.
"""
import argparse, json, resource, time
import torch, torch.nn as nn, torch.nn.functional as F

VGAE = dict(student=dict(hidden=[80, 40], latent=16, heads=1, emb=4),
            teacher=dict(hidden=[480, 240], latent=48, heads=4, emb=32),
            teacher_xl=dict(hidden=[1024, 512], latent=96, heads=4, emb=64))
GAT = dict(student=dict(hidden=24, layers=2, heads=4, emb=8, fc=3),
           teacher=dict(hidden=48, layers=3, heads=8, emb=16, fc=2),
           teacher_xl=dict(hidden=64, layers=5, heads=8, emb=32, fc=3))
GNN = dict(student=dict(hidden=32, layers=3), teacher=dict(hidden=256, layers=4))
NUM_IDS, CONT = 40, 10


class Vgae(nn.Module):
    def __init__(self, hidden, latent, heads, emb, dropout=0.1):
        super().__init__()
        from torch_geometric.nn import GATConv
        conv = lambda i, o, h: GATConv(i, o // h, heads=h) if o % h == 0 else GATConv(i, o)
        self.emb, self.drop = nn.Embedding(NUM_IDS, emb), dropout
        widths = [emb + CONT] + hidden
        self.enc = nn.ModuleList(conv(widths[i], widths[i + 1], heads if i == 0 else 1) for i in range(len(hidden)))
        self.enc_bn = nn.ModuleList(nn.BatchNorm1d(w) for w in hidden)
        self.mu, self.logvar = nn.Linear(hidden[-1], latent), nn.Linear(hidden[-1], latent)
        back = [latent] + hidden[::-1][:-1]
        self.dec = nn.ModuleList(conv(back[i], back[i + 1], 4) for i in range(len(back) - 1))
        self.dec_bn = nn.ModuleList(nn.BatchNorm1d(w) for w in back[1:])
        self.out = GATConv(back[-1], CONT)
        self.ids = nn.Linear(latent, NUM_IDS)
        self.nbr = nn.Sequential(nn.Linear(latent, latent), nn.ReLU(), nn.Dropout(dropout), nn.Linear(latent, latent),
                                 nn.ReLU(), nn.Dropout(dropout), nn.Linear(latent, NUM_IDS))

    def forward(self, b):
        x = torch.cat([self.emb(b.ids), b.cont], 1)
        for c, n in zip(self.enc, self.enc_bn):
            x = F.dropout(F.relu(n(c(x, b.edge_index))), self.drop, self.training)
        mu, logvar = self.mu(x), self.logvar(x)
        z = mu + torch.exp(.5 * logvar) * torch.randn_like(mu) if self.training else mu
        x = z
        for c, n in zip(self.dec, self.dec_bn):
            x = F.dropout(F.relu(n(c(x, b.edge_index))), self.drop, self.training)
        kl = -.5 * torch.mean(1 + logvar - mu ** 2 - logvar.exp())
        return torch.sigmoid(self.out(x, b.edge_index)), self.ids(z), self.nbr(z), z, kl

    def task(self, b, o):
        cont, ids, nbr, _, kl = o
        t = torch.zeros(b.ids.numel(), NUM_IDS)
        t[b.edge_index[0], b.ids[b.edge_index[1]]] = 1.
        return F.mse_loss(cont, b.cont) + .1 * F.cross_entropy(ids, b.ids) + .05 * F.binary_cross_entropy_with_logits(nbr, t) + .01 * kl


class Gat(nn.Module):
    def __init__(self, hidden, layers, heads, emb, fc, dropout=0.1):
        super().__init__()
        from torch_geometric.nn import GATConv
        self.emb, self.drop = nn.Embedding(NUM_IDS, emb), dropout
        self.convs = nn.ModuleList(GATConv(emb + CONT if i == 0 else hidden * heads, hidden, heads=heads) for i in range(layers))
        d = hidden * heads * layers
        mods = []
        for _ in range(fc - 1):
            mods += [nn.Linear(d, d), nn.ReLU(), nn.Dropout(dropout)]
        self.fc = nn.Sequential(*mods, nn.Linear(d, 2))

    def forward(self, b):
        from torch_geometric.nn import global_mean_pool
        x, xs = torch.cat([self.emb(b.ids), b.cont], 1), []
        for c in self.convs:
            x = F.dropout(c(x, b.edge_index).relu(), self.drop, self.training)
            xs.append(x)
        return self.fc(global_mean_pool(torch.cat(xs, 1), b.batch, size=b.num_graphs))

    def task(self, b, o):
        return F.cross_entropy(o, b.y)


class Gnn(nn.Module):
    """GIN or GraphSAGE: each layer with batch norm, the sums over nodes of all layers, and two linear layers."""
    def __init__(self, kind, hidden, layers, dropout=0.1):
        super().__init__()
        from torch_geometric.nn import GINConv, SAGEConv, MLP
        conv = (lambda i: GINConv(MLP([i, hidden, hidden]))) if kind == 'gin' else (lambda i: SAGEConv(i, hidden))
        self.drop = dropout
        self.convs = nn.ModuleList(conv(CONT if i == 0 else hidden) for i in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(hidden * layers, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 2))

    def forward(self, b):
        from torch_geometric.nn import global_add_pool
        x, xs = b.cont, []
        for c, n in zip(self.convs, self.norms):
            x = F.dropout(F.relu(n(c(x, b.other_edges))), self.drop, self.training)
            xs.append(global_add_pool(x, b.batch, size=b.num_graphs))
        return self.head(torch.cat(xs, 1))

    def task(self, b, o):
        return F.cross_entropy(o, b.y)


class Batch:
    pass


def load_batches(size, count, path):
    from safetensors.torch import load_file
    t = load_file(path)
    out, graphs = [], len(t['y'])
    for k in range(count):
        b = Batch()
        pick = [(k * size + i) % graphs for i in range(size)]
        xs, es, bi, off = [], [], [], 0
        for g, i in enumerate(pick):
            n0, n1, e0, e1 = (int(v) for v in (t['node_ptr'][i], t['node_ptr'][i + 1], t['edge_ptr'][i], t['edge_ptr'][i + 1]))
            xs.append(t['x'][n0:n1]); es.append(t['edge_index'][:, e0:e1].long() + off)
            bi.append(torch.full((n1 - n0,), g)); off += n1 - n0
        x = torch.cat(xs)
        b.ids, b.cont, b.edge_index, b.batch = x[:, 0].long(), x[:, 1:].contiguous(), torch.cat(es, 1), torch.cat(bi)
        b.other_edges = b.edge_index[:, b.edge_index[0] != b.edge_index[1]]
        b.y, b.num_graphs = t['y'][pick].long(), size
        out.append(b)
    return out


def median_seconds(step, batches, seconds):
    for b in batches[:2]:
        step(b)
    times, start, i = [], time.perf_counter(), 0
    while time.perf_counter() - start < seconds or len(times) < 5:
        s = time.perf_counter(); step(batches[i % len(batches)]); times.append(time.perf_counter() - s); i += 1
    return sorted(times)[len(times) // 2], len(times)


def build(csv):
    """Frames to graphs with pandas and numpy, with the features of docs/store.md."""
    import numpy as np, pandas as pd
    df = pd.read_csv(csv, dtype=str).fillna('')
    ids = df.iloc[:, 1].map(lambda s: int(s, 16)).to_numpy()
    data = np.stack([df.iloc[:, 2].str[2 * k:2 * k + 2].map(lambda s: int(s, 16) if len(s) == 2 else 0).to_numpy() for k in range(8)], 1) / 255.
    y = df.iloc[:, 3].astype(int).to_numpy()
    src, dst, W, graphs = ids[:-1], ids[1:], 100, 0
    pos = np.arange(W)
    for s in range(0, len(src) - W + 1, W):
        a, b, d = src[s:s + W], dst[s:s + W], data[s:s + W]
        nodes = np.unique(np.concatenate([a, b])); edges, cnt = np.unique(np.stack([a, b], 1), axis=0, return_counts=True)
        x = np.zeros((len(nodes), 11), np.float32); occ = np.zeros(len(nodes))
        for i, n in enumerate(nodes):
            m = a == n; x[i, 0] = n
            if m.any():
                x[i, 1:9] = d[m].mean(0); occ[i] = m.sum(); x[i, 10] = pos[m][-1] / (W - 1)
        x[:, 9] = (occ - occ.min()) / (occ.max() - occ.min()) if occ.max() > occ.min() else occ
        ef = np.zeros((len(edges), 11), np.float32); ef[:, 0] = cnt; ef[:, 1] = cnt / W
        deg = {n: (a == n).sum() + (b == n).sum() for n in nodes}; pairs = set(map(tuple, edges))
        for i, (u, v) in enumerate(edges):
            p = pos[(a == u) & (b == v)]
            if len(p) > 1:
                g = np.diff(p); ef[i, 2] = g.mean(); ef[i, 3] = g.std(); ef[i, 4] = 1 / (1 + g.std())
            ef[i, 5:8] = p[0] / W, p[-1] / W, (p[-1] - p[0]) / W
            ef[i, 8] = (v, u) in pairs; ef[i, 9] = deg[u] * deg[v]; ef[i, 10] = deg[u] / deg[v]
        graphs += 1; y[s:s + W].any()
    return len(df), graphs


def main():
    a = argparse.ArgumentParser()
    a.add_argument('what', choices='train kd cached infer score build'.split())
    a.add_argument('--model', default='vgae'); a.add_argument('--size', default='student'); a.add_argument('--teacher', default='teacher')
    a.add_argument('--batch', type=int, default=512); a.add_argument('--threads', type=int, default=2); a.add_argument('--seconds', type=float, default=10)
    a.add_argument('--graphs'); a.add_argument('--csv')
    a = a.parse_args()
    if (a.csv if a.what == 'build' else a.graphs) is None:
        raise SystemExit(f"peer.py {a.what} needs {'--csv' if a.what == 'build' else '--graphs'} FILE")
    torch.set_num_threads(a.threads); torch.manual_seed(0)
    r = dict(what=a.what, model=a.model, size=a.size, batch=a.batch, threads=a.threads)
    if a.what == 'build':
        s = time.perf_counter(); frames, graphs = build(a.csv); t = time.perf_counter() - s
        r |= dict(seconds=t, frames_per_second=frames / t, graphs=graphs)
    else:
        make = (lambda s: Vgae(**VGAE[s])) if a.model == 'vgae' or a.what == 'score' else \
            (lambda s: Gat(**GAT[s])) if a.model == 'gat' else (lambda s: Gnn(a.model, **GNN[s]))
        m = make(a.size); opt = torch.optim.Adam(m.parameters(), lr=2e-3, weight_decay=1e-4)
        batches = load_batches(a.batch, max(2, min(12, 6000 // a.batch)), a.graphs)
        teacher = make(a.teacher).eval().requires_grad_(False) if a.what in ('kd', 'cached') else None
        proj = nn.Linear(VGAE[a.size]['latent'], VGAE[a.teacher]['latent']) if teacher is not None and a.model == 'vgae' else None
        if proj is not None:
            opt.add_param_group(dict(params=proj.parameters()))
        def targets(b):
            with torch.no_grad():
                return teacher(b)
        if a.what == 'cached':
            for b in batches: b.t = targets(b)
        def train(b):
            opt.zero_grad(); o = m(b); loss = m.task(b, o)
            if teacher is not None:
                t = b.t if a.what == 'cached' else targets(b)
                kd = (.5 * F.mse_loss(proj(o[3]), t[3]) + .5 * F.mse_loss(o[0], t[0])) if a.model == 'vgae' else \
                    16 * F.kl_div(F.log_softmax(o / 4, -1), F.softmax(t / 4, -1), reduction='batchmean')
                loss = .7 * kd + .3 * loss
            loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.); opt.step(); return loss.item()
        @torch.no_grad()
        def infer(b): return m(b)
        @torch.no_grad()
        def score(b):
            o = m(b); from torch_geometric.nn import global_mean_pool as pool
            return (pool((o[0] - b.cont) ** 2, b.batch, size=b.num_graphs).mean(1) + .1 * pool(F.cross_entropy(o[1], b.ids, reduction='none')[:, None], b.batch, size=b.num_graphs)[:, 0]).tolist()
        step = dict(train=train, kd=train, cached=train, infer=infer, score=score)[a.what]
        m.train(a.what in ('train', 'kd', 'cached'))
        t, n = median_seconds(step, batches, a.seconds)
        r |= dict(params=sum(p.numel() for p in m.parameters()), median_seconds=t, steps=n, graphs_per_second=a.batch / t)
    r['peak_rss_mib'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(r))


if __name__ == '__main__':
    main()
