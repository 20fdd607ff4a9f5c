"""Batches of one size, so that what a stream gets does not depend on who its neighbours are, to the last bit.

Matrix libraries pick their kernels by shape: the same row gives slightly other digits in a batch of 3 and in one of 5. Within a fixed
shape a row's digits do not depend on its place or on the other rows. A record that is computed anew after a crash must equal the first
one, so the server runs every frame in a shape that depends on this stream alone."""

import torch
from torch import Tensor

from surgicalmamba.config import ModelConfig, RecognizerConfig
from surgicalmamba.core.chunks import closes_after
from surgicalmamba.core.state import LaneState
from surgicalmamba.model.recognizer import Output
from surgicalmamba.stream.engine import Engine


class FixedLanes:
    """An engine around an engine: pictures are encoded one by one; streams advance in batches of `n_lanes`, filled up with blanks.

    A frame that closes a chunk of a stream rotates its state, which concerns some lanes of a batch only; it runs alone. So does every
    frame of a network whose memory grows: in a batch it would be as long as the longest neighbour's."""

    def __init__(self, inner: Engine, n_lanes: int) -> None:
        self._inner, self._n_lanes = inner, n_lanes

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def config(self) -> RecognizerConfig:
        return self._inner.config

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    def initial_state(self, n_lanes: int) -> LaneState:
        return self._inner.initial_state(n_lanes)

    def encode(self, frames: Tensor) -> Tensor:
        return torch.cat([self._inner.encode(frames[i : i + 1]) for i in range(len(frames))])

    def advance(self, features: Tensor, state: LaneState) -> Output[LaneState]:
        parts: dict[int, Output[LaneState]] = {}
        closing = [lane for lane, seen in enumerate(state.frame_index) if state.GROWING or self._closes(seen + 1)]
        for lane in closing:
            parts[lane] = self._inner.advance(features[lane : lane + 1], state.select([lane]))
        ordinary = [lane for lane in range(state.n_lanes) if lane not in parts]
        for start in range(0, len(ordinary), self._n_lanes):
            parts |= self._block(features, state, ordinary[start : start + self._n_lanes])
        outputs = [parts[lane] for lane in range(state.n_lanes)]
        intensities = [output.intensity_logits for output in outputs if output.intensity_logits is not None]
        return Output(
            torch.cat([output.logits for output in outputs]),
            torch.cat(intensities) if intensities else None,
            type(state).stack([output.state for output in outputs]),
        )

    def _block(self, features: Tensor, state: LaneState, lanes: list[int]) -> dict[int, Output[LaneState]]:
        """These lanes in one batch of the fixed size, each with its own output."""
        n_blank = self._n_lanes - len(lanes)
        part, given = state.select(lanes), features[lanes]
        if n_blank:
            part = type(part).stack([part, self._inner.initial_state(n_blank)])
            given = torch.cat([given, given.new_zeros(n_blank, given.shape[1])])
        output = self._inner.advance(given, part)
        intensity = output.intensity_logits
        return {
            lane: Output(output.logits[i : i + 1], None if intensity is None else intensity[i : i + 1], output.state.select([i]))
            for i, lane in enumerate(lanes)
        }

    def _closes(self, frames_seen: int) -> bool:
        """Whether any path of the model ends a chunk here."""
        config = self.config
        if not isinstance(config, ModelConfig):
            return False
        return any(
            path.rotation is not None and closes_after(frames_seen, path.chunk_len, None if name == "block.slow" else config.clip_len)
            for name, path in config.paths().items()
        )
