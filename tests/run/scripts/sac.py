"""SAC: the critics step each time, the actor and the temperature every second time."""

import torch
from torch import nn

from tests.support.spans import iterated, span


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


actor, q1, q2, target = mlp(8, 4), mlp(12, 1), mlp(12, 1), mlp(12, 1)
log_alpha = torch.zeros(1, requires_grad=True)
q_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
for step in range(30):
    state, reward = torch.randn(64, 8), torch.randn(64, 1)
    with torch.no_grad():
        with span("eval"):
            action = torch.tanh(actor(state))
        with span("eval"):
            aim = reward + 0.99 * target(torch.cat([state, action], 1))
    with span("forward"):
        first = q1(torch.cat([state, action], 1))
    with span("forward"):
        second = q2(torch.cat([state, action], 1))
    with span("loss"):
        loss = (first - aim).pow(2).mean() + (second - aim).pow(2).mean()
        q_optimizer.zero_grad()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        q_optimizer.step()
    if step % 2:
        for _ in range(2):
            with span("forward"):
                action = actor(state)
            with span("forward"):
                value = q1(torch.cat([state, torch.tanh(action)], 1))
            with span("loss"):
                loss = (log_alpha.exp().detach() * action.pow(2).mean() - value).mean()
                actor_optimizer.zero_grad()
            with span("backward"):
                loss.backward()
            with span("optimizer"):
                actor_optimizer.step()
            alpha_loss = (log_alpha * (action.detach().mean() + 4)).mean()
            alpha_optimizer.zero_grad()
            with span("backward"):
                alpha_loss.backward()
            with span("optimizer"):
                alpha_optimizer.step()
    iterated()
results = [actor, q1, q2, log_alpha]
