"""Small recognizers for the checks: a few that keep the contract, and many that each break it in one
place."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import nn

import surgicalmamba as sm


class ToyConfig(sm.RecognizerConfig):
    window: int = Field(3, gt=0)


@dataclass(frozen=True)
class ToyState(sm.LaneState):
    total: torch.Tensor  # (b, d)


class Sound(sm.Recognizer[ToyState]):
    """The running sum of all features, classified. It keeps the contract; the networks below each break it
    in one place."""

    name = "toy"
    config_class = ToyConfig
    memory = "O(1)"

    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.feature_width, config.n_phases)

    def initial_state(self, n_lanes):
        return ToyState((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))

    def temporal(self, features, state):
        sums = state.total[:, None] + features.cumsum(1)
        after = replace(state, total=sums[:, -1]).advance(features.shape[1])
        return sm.Output(self.classifier(sums), None, after)


class Forgets(Sound):
    """Every call starts without memory."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=self.initial_state(state.n_lanes).at(output.state.frame_index))


class ForgetsLongCalls(Sound):
    """Right frame by frame and in one call, wrong after a call of more than a few frames."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return (
            output
            if features.shape[1] < 6
            else replace(output, state=replace(output.state, total=features[:, -1]))
        )


class LooksAhead(Sound):
    """The mean of this frame and the next one of the same call."""

    def temporal(self, features, state):
        return super().temporal(features + torch.cat([features[:, 1:], features[:, -1:]], dim=1), state)


class Declares(Sound):
    lookahead = 2


class Leaks(Sound):
    """Lanes share their mean."""

    def temporal(self, features, state):
        return super().temporal(features - features.mean(0, keepdim=True), state)


class BeginsWithOnes(Sound):
    def initial_state(self, n_lanes):
        return replace(super().initial_state(n_lanes), total=torch.ones(n_lanes, self.feature_width))


class Stands(Sound):
    """Its clock does not move."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=output.state.at(state.frame_index))


class Deaf(Sound):
    def temporal(self, features, state):
        return super().temporal(0 * features, state)


class HidesMemory(Sound):
    """Counts calls in itself, not in its state: a restored session shares the count, a reset does not undo
    it."""

    calls = 0

    def temporal(self, features, state):
        self.calls += 1
        return super().temporal(features + 1e-2 * self.calls, state)


class RemembersLess(Sound):
    def remember(self, features, state):
        return state.advance(features.shape[1])


class RemembersFromTheStart(Sound):
    """What it keeps in mind does not go on from what it knew."""

    def remember(self, features, state):
        return super().remember(features, self.initial_state(state.n_lanes).at(state.frame_index))


class ForgetsBeforeLongCalls(Sound):
    """Right in steps, in short calls, and in one call from the start; a long call that
    continues a procedure starts without memory."""

    def temporal(self, features, state):
        return super().temporal(
            features, replace(state, total=0 * state.total) if features.shape[1] > 9 else state
        )


class WrongInCallsOfFour(Sound):
    def temporal(self, features, state):
        return super().temporal(features * (1.1 if features.shape[1] == 4 else 1.0), state)


class HugeLogit(LooksAhead):
    """Looks ahead, and has a phase that it rules out: its logit must not hide the rest."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(
            output, logits=torch.cat([output.logits[..., :-1], output.logits[..., -1:] - 1e4], dim=-1)
        )


class TinyLogits(Forgets):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=1e-5 * output.logits)


class LooksAheadLate(Sound):
    """From the fiftieth frame on."""

    def temporal(self, features, state):
        ahead = torch.cat([features[:, 1:], features[:, -1:]], dim=1)
        at = torch.arange(features.shape[1]) + state.frame_index[0]
        return super().temporal(torch.where((at >= 50)[None, :, None], ahead, features), state)


class BreaksLate(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=output.logits * (torch.nan if state.frame_index[0] > 60 else 1.0))


class WrapsLate(Sound):
    """A call that leads over frame 64 loses what was before it."""

    def temporal(self, features, state):
        before, after = state.frame_index[0], state.frame_index[0] + features.shape[1]
        return super().temporal(
            features, replace(state, total=0 * state.total) if before < 64 < after else state
        )


class KeepsHandles(Sound):
    """Its state is a ticket; what it remembers lies in the network."""

    def __init__(self, config):
        super().__init__(config)
        self.kept = {}

    def temporal(self, features, state):
        known = torch.stack(
            [
                self.kept.get(round(float(ticket), 3), torch.zeros(self.feature_width))
                for ticket in state.total[:, 0]
            ]
        )
        output = super().temporal(features, replace(state, total=known))
        tickets = torch.zeros_like(known)
        tickets[:, 0] = output.state.total.abs().sum(1)
        self.kept |= {
            round(float(ticket), 3): total
            for ticket, total in zip(tickets[:, 0], output.state.total, strict=True)
        }
        return replace(output, state=replace(output.state, total=tickets))


@dataclass(frozen=True)
class CountState(ToyState):
    calls: int


class CountsInItsState(Sound):
    def initial_state(self, n_lanes):
        return CountState((0,) * n_lanes, self.zeros(n_lanes, self.feature_width), 0)


@dataclass(frozen=True)
class PairState(ToyState):
    pair: tuple[torch.Tensor, torch.Tensor]


class KeepsATuple(Sound):
    def initial_state(self, n_lanes):
        zeros = self.zeros(n_lanes, self.feature_width)
        return PairState((0,) * n_lanes, zeros, (zeros, zeros))


class GrowsInSteps(Sound):
    """A number more for every call of a single frame; none in long calls, in which the memory is measured."""

    def forward_features(self, features, state=None, n_frames=None):
        grown = 0 if state is None else state.total.shape[1] - self.feature_width
        known = None if state is None else replace(state, total=state.total[:, : self.feature_width])
        output = super().forward_features(features, known)
        total = nn.functional.pad(output.state.total, (0, grown + (features.shape[1] == 1)))
        return replace(output, state=replace(output.state, total=total))


class WritesIntoItsState(Sound):
    """In calls of a single frame."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        if features.shape[1] == 1 and state.frame_index[0]:
            state.total.copy_(output.state.total)
        return output


@dataclass(frozen=True)
class KeepsSome(ToyState):
    def reset(self, lanes):
        return replace(
            super().reset(lanes), total=torch.where(self.total > 2, self.total, super().reset(lanes).total)
        )


@dataclass(frozen=True)
class ResetsTheFirst(ToyState):
    def reset(self, lanes):
        return replace(super().reset(lanes), total=super().reset([0]).total)


class ResetsHalf(Sound):
    def initial_state(self, n_lanes):
        return KeepsSome((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))


class ResetsLaneZero(Sound):
    def initial_state(self, n_lanes):
        return ResetsTheFirst((0,) * n_lanes, self.zeros(n_lanes, self.feature_width))


class LeaksInSteps(Sound):
    """Single frames of lanes with different clocks take the first lane's memory: what a pool of live
    sessions would meet."""

    def temporal(self, features, state):
        mixed = features.shape[1] == 1 and len(set(state.frame_index)) > 1
        return super().temporal(
            features, replace(state, total=state.total[:1].expand_as(state.total)) if mixed else state
        )


class LeaksAmongFour(Sound):
    def temporal(self, features, state):
        return super().temporal(features + (features.mean() if len(features) > 3 else 0.0), state)


class WrongIntensity(Sound):
    def temporal(self, features, state):
        return replace(super().temporal(features, state), intensity_logits=torch.zeros(len(features), 2))


@dataclass(frozen=True)
class CacheState(sm.LaneState):
    GROWING = frozenset({"cache"})
    cache: torch.Tensor  # (b, t, d)


class Grows(sm.Recognizer[CacheState]):
    """Keeps every frame; sound as O(T)."""

    name = "cache"
    config_class = ToyConfig
    memory = "O(T)"

    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.feature_width, config.n_phases)

    def initial_state(self, n_lanes):
        return CacheState((0,) * n_lanes, self.zeros(n_lanes, 0, self.feature_width))

    def temporal(self, features, state):
        length = features.shape[1]
        cache = state.with_length(max(state.frame_index) + length).cache.clone()
        logits = []
        for lane, seen in enumerate(state.frame_index):
            cache[lane, seen : seen + length] = features[lane]
            logits.append(self.classifier(cache[lane, : seen + length].cumsum(0)[seen:]))
        return sm.Output(torch.stack(logits), None, replace(state, cache=cache).advance(length))


class GrowsInSecret(Grows):
    memory = "O(W)"


class FillsUp(Grows):
    """Keeps the last frames, at most fifty; sound as O(W), whose memory may be allocated as it is needed."""

    memory = "O(W)"

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, state=output.state.with_length(min(output.state.frame_index[0], 50)))


class FillsUpInSecret(FillsUp):
    memory = "O(1)"


class FillsUpEarly(FillsUp):
    memory = "O(T)"


class Stays(Sound):
    memory = "O(T)"


class SoundWithAnOffset(Sound):
    """All logits far from zero, which changes no probability but leaves float32 less room."""

    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=output.logits + 1e3)


class SoundWithARuledOutPhase(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(
            output, logits=torch.cat([output.logits[..., :-1], output.logits[..., -1:] - 1e9], dim=-1)
        )


class SoundWithTinyLogits(Sound):
    def temporal(self, features, state):
        output = super().temporal(features, state)
        return replace(output, logits=1e-5 * output.logits)
