"""Your own recognizer in forty lines: a moving average of the features per time constant, and a classifier.

surgicalmamba check --model own_recognizer:MovingAverage
export SURGICALMAMBA_RECOGNIZERS=own_recognizer:MovingAverage
surgicalmamba train recognizer=moving-average data.path=PREPARED
"""

from dataclasses import dataclass, replace

import torch
from pydantic import Field

import surgicalmamba as sm


class MovingAverageConfig(sm.RecognizerConfig):
    seconds: tuple[float, ...] = Field((5.0, 60.0, 600.0), description="Time constants in frames, at 1 fps.")


@dataclass(frozen=True)
class MovingAverageState(sm.LaneState):  # all memory of a procedure: lane first, zeros mean "nothing seen"
    means: torch.Tensor  # (b, n, d)


class MovingAverage(sm.Recognizer[MovingAverageState]):
    name, config_class, memory = "moving-average", MovingAverageConfig, "O(1)"

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("keep", torch.exp(-1 / torch.tensor(config.seconds))[:, None])  # (n, 1)
        self.classifier = torch.nn.Linear(len(config.seconds) * config.feature_width, config.n_phases)

    def initial_state(self, n_lanes):
        means = self.zeros(n_lanes, len(self.config.seconds), self.feature_width)
        return MovingAverageState((0,) * n_lanes, means)

    def temporal(self, features, state):  # features (b, l, d), for any l
        means, history = state.means, []
        for frame in features.unbind(1):
            means = self.keep * means + (1 - self.keep) * frame[:, None]
            history.append(means.flatten(1))
        logits = self.classifier(torch.stack(history, dim=1))
        return sm.Output(logits, None, replace(state, means=means).advance(features.shape[1]))
