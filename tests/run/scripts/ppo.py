"""PPO: rollouts without gradients, then updates on minibatches. An iteration is an update."""

import torch
from torch import nn

from tests.support.spans import iterated, span


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.actor(x), self.critic(x)


agent = ActorCritic()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
state = torch.randn(16, 8)
for _ in range(5):
    states, actions, rewards = [], [], []
    for _ in range(20):
        with torch.no_grad(), span("eval"):
            logits, value = agent(state)
        action = torch.distributions.Categorical(logits=logits).sample()
        states.append(state)
        actions.append(action)
        rewards.append(torch.randn(16) - value.squeeze(1))
        state = torch.tanh(state + torch.randn_like(state))
    states, actions, rewards = torch.cat(states), torch.cat(actions), torch.cat(rewards)
    for indices in torch.randperm(320).split(80):
        with span("forward"):
            logits, value = agent(states[indices])
        with span("loss"):
            policy = torch.distributions.Categorical(logits=logits)
            loss = -(policy.log_prob(actions[indices]) * rewards[indices]).mean()
            loss = loss + 0.5 * (value.squeeze(1) - rewards[indices]).pow(2).mean()
            optimizer.zero_grad()
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer.step()
        iterated()
results = [agent]
