# SPDX-License-Identifier: Apache-2.0
"""Trains for 20 steps, replays a CUDA graph 50 times, prints one hash of all that came out."""
import hashlib

import torch

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.deterministic = True
net = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
net = net.to("cuda", torch.bfloat16)
conv = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(),
                           torch.nn.Conv2d(64, 64, 3, padding=1)).to("cuda")
optimizer = torch.optim.AdamW([*net.parameters(), *conv.parameters()], lr=1e-3)
x = torch.randn(16, 256, 1024, device="cuda", dtype=torch.bfloat16)
image = torch.randn(8, 3, 64, 64, device="cuda")
digest = hashlib.sha256()
for _ in range(20):
    optimizer.zero_grad()
    loss = net(x).float().pow(2).mean() + conv(image).pow(2).mean()
    loss.backward()
    optimizer.step()
    digest.update(loss.detach().cpu().numpy().tobytes())
for parameter in [*net.parameters(), *conv.parameters()]:
    digest.update(parameter.detach().float().cpu().numpy().tobytes())
net.eval()
stream = torch.cuda.Stream()
with torch.no_grad():
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
    for _ in range(50):
        graph.replay()
torch.cuda.synchronize()
digest.update(y.float().cpu().numpy().tobytes())
print("hash", digest.hexdigest()[:16])
