"""The classical baseline: a classifier of single frames, and an online hidden Markov model over its answers.

Published: EndoNet classifies each frame (a support vector machine on its features) and runs a hidden Markov
model over the answers.
Uncertain: EndoNet's is a two-level model with Gaussian mixtures over the classifier's confidences; its sizes
are not given.
Changed: the classifier is logistic regression, trained by the same trainer as every other network; the model
has one level, and its transitions, first phases and phase shares are counted in the training labels. The
evidence of a frame for a phase is the classifier's probability divided by the phase's share, the usual way to
combine the two. The answer is that of the forward filter: online and exact."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn

from surgicalmamba.core.ssd import full
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output, Recognizer, RecognizerConfig


class HMMConfig(RecognizerConfig):
    evidence_weight: float = Field(
        1.0,
        gt=0,
        description="Exponent of a frame's evidence. 1 treats neighbouring frames as independent; less is "
        "more cautious.",
    )
    pseudo_count: float = Field(
        0.5, gt=0, description="Added to every count, so that events absent from training stay possible."
    )


@dataclass(frozen=True)
class BeliefState(LaneState):
    """Log-probability of every phase given the procedure so far."""

    belief: Tensor  # (b, k)


class FrameHMM(Recognizer[BeliefState]):
    """p(z_t | x_1..t) is proportional to p(z_t | x_t) / p(z_t) times the sum over z of p(z_t | z) p(z |
    x_1..t-1).

    In training mode the logits are the classifier's alone: it is trained frame by frame, and the filter is
    counted, not learned."""

    name = "hmm"
    config_class = HMMConfig
    memory = "O(1)"
    config: HMMConfig
    log_transition: Tensor
    log_first: Tensor
    log_share: Tensor

    def __init__(self, config: HMMConfig) -> None:
        super().__init__(config)
        k = config.n_phases
        self.classifier = nn.Linear(config.feature_width, k)
        self.register_buffer("log_transition", torch.full((k, k), 1.0 / k).log())
        self.register_buffer("log_first", torch.full((k,), 1.0 / k).log())
        self.register_buffer("log_share", torch.full((k,), 1.0 / k).log())

    @torch.no_grad()
    def measure(self, features: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        """Count first phases, shares and transitions between neighbouring labelled frames. The classifier's
        bias starts at the shares, so before training it gives no evidence for any phase."""
        super().measure(features, labels)
        k = self.n_phases
        first, share, transition = (
            torch.full(shape, self.config.pseudo_count, dtype=torch.float64) for shape in ((k,), (k,), (k, k))
        )
        for video in labels:
            known = video[video >= 0]
            if len(known):
                first[known[0]] += 1
            share += torch.bincount(known, minlength=k)
            pairs = torch.stack([video[:-1], video[1:]])[:, (video[:-1] >= 0) & (video[1:] >= 0)]
            transition.index_put_(
                (pairs[0], pairs[1]), torch.ones(pairs.shape[1], dtype=torch.float64), accumulate=True
            )
        self.log_first.copy_((first / first.sum()).log())
        self.log_share.copy_((share / share.sum()).log())
        self.log_transition.copy_((transition / transition.sum(1, keepdim=True)).log())
        self.classifier.bias.copy_(self.log_share)

    def initial_state(self, n_lanes: int) -> BeliefState:
        return BeliefState((0,) * n_lanes, self.zeros(n_lanes, self.n_phases))

    def temporal(self, features: Tensor, state: BeliefState) -> Output[BeliefState]:
        logits = self.classifier(features)
        evidence = self.config.evidence_weight * (full(logits).log_softmax(-1) - self.log_share)
        begins = torch.tensor([seen == 0 for seen in state.frame_index], device=features.device)[:, None]
        belief, beliefs = state.belief, []
        for t in range(features.shape[1]):
            expected = torch.logsumexp(belief[:, :, None] + self.log_transition, dim=1)
            if t == 0:
                expected = torch.where(begins, self.log_first, expected)
            belief = (expected + evidence[:, t]).log_softmax(-1)
            beliefs.append(belief)
        after = BeliefState(state.frame_index, belief).advance(features.shape[1])
        return Output(logits if self.training else torch.stack(beliefs, dim=1), None, after)
