"""DQN: acts without gradients, learns every fourth environment step once the buffer is warm."""

import torch
from torch import nn

from tests.support.spans import iterated, span

net, target = (nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
optimizer = torch.optim.RMSprop(net.parameters())
buffer, state = [], torch.randn(8)
for step in range(200):
    with torch.no_grad(), span("eval"):
        action = int(net(state.unsqueeze(0)).argmax())
    following = torch.tanh(state + torch.randn(8))
    buffer.append((state, action, torch.randn(()), following))
    state = following
    if step < 40 or step % 4:
        continue
    chosen = [buffer[int(i)] for i in torch.randint(0, len(buffer), (32,))]
    states = torch.stack([item[0] for item in chosen])
    actions = torch.tensor([item[1] for item in chosen])
    rewards = torch.stack([item[2] for item in chosen])
    with torch.no_grad(), span("eval"):
        best = target(torch.stack([item[3] for item in chosen])).max(1).values
    with span("forward"):
        values = net(states)
    with span("loss"):
        chosen_values = values.gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen_values, rewards + 0.9 * best)
        optimizer.zero_grad()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        optimizer.step()
    iterated()
    if step % 40 == 0:
        target.load_state_dict(net.state_dict())
results = [net]
