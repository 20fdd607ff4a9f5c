"""What every peer must keep, small: any cut, other lanes, causality, reset; and that all of it is trained."""

import torch

TOLERANCE = 1e-5


def varied(model):
    """The model in evaluation with every weight moved, so that nothing rests on an initial value."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def frames(model, n_lanes, length, seed=0):
    return torch.randn(n_lanes, length, model.feature_width, generator=torch.Generator().manual_seed(seed))


def in_cuts(model, features, cuts, state=None):
    """Logits and final state of a sequence given in pieces of these lengths, the last one repeated as
    often as needed."""
    logits, start = [], 0
    remaining = list(cuts)
    while start < features.shape[1]:
        size = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        output = model.forward_features(features[:, start : start + size], state)
        state, start = output.state, start + size
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


def assert_same_state(a, b):
    assert a.frame_index == b.frame_index and a.names() == b.names()
    for name, one, other in zip(a.names(), a.tensors(), b.tensors(), strict=True):
        torch.testing.assert_close(
            one, other, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


def check_contract(model, length=23):
    """Every clause of the contract on one network."""
    with torch.no_grad():
        varied(model)
        features = frames(model, 2, length)
        whole = model.forward_features(features)
        assert whole.logits.shape == (2, length, model.n_phases) and whole.state.frame_index == (
            length,
            length,
        )
        _check_cuts(model, features, whole)
        if model.lookahead == 0:
            _check_causality(model, features, whole)
        _check_lanes(model, features, whole)
        _check_memory_class(model, length)
        check_padding(model)
    check_training(model)


def _check_cuts(model, features, whole):
    for cuts in ([1], [3], [1, 7, 2, 5], [features.shape[1] - 1, 1]):
        logits, state = in_cuts(model, features, cuts)
        torch.testing.assert_close(logits, whole.logits, atol=TOLERANCE, rtol=TOLERANCE)
        assert_same_state(state, whole.state)


def _check_causality(model, features, whole):
    for t in (1, features.shape[1] // 2, features.shape[1] - 1):
        changed = features.clone()
        changed[:, t:] += 3.0
        logits = model.forward_features(changed).logits
        torch.testing.assert_close(logits[:, :t], whole.logits[:, :t], atol=TOLERANCE, rtol=TOLERANCE)
        assert not torch.allclose(logits[:, t], whole.logits[:, t], atol=1e-3)


def _check_lanes(model, features, whole):
    """Lanes at different frames, joined, reset and moved, give what each gives alone."""
    early, late = (
        model.forward_features(features[:1, :4]).state,
        model.forward_features(features[1:, :11]).state,
    )
    joined = type(early).stack([early, late])
    assert joined.frame_index == (4, 11)
    following = torch.stack([features[0, 4:13], features[1, 11:20]])
    output = model.forward_features(following, joined)
    torch.testing.assert_close(output.logits[0], whole.logits[0, 4:13], atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(output.logits[1], whole.logits[1, 11:20], atol=TOLERANCE, rtol=TOLERANCE)
    assert_same_state(output.state.select([0]), model.forward_features(features[:1, :13]).state)
    again = model.forward_features(features[:, :9], output.state.reset([0]).put([1], model.initial_state(1)))
    torch.testing.assert_close(again.logits, whole.logits[:, :9], atol=TOLERANCE, rtol=TOLERANCE)


def _check_memory_class(model, length):
    first, second = (model.forward_features(frames(model, 1, n)).state.nbytes for n in (length, 2 * length))
    assert (second > first) == (model.memory == "O(T)")
    assert model.initial_state(3).frame_index == (0, 0, 0)


def check_padding(model):
    """In training, what stands after a lane's frames changes no answer and no loss before."""
    varied(model).train()
    n_frames, features = torch.tensor([7, 3]), frames(model, 2, 7)
    other = features.clone()
    other[1, 3:] += 2.0
    state = model.eval().forward_features(frames(model, 2, 5, seed=3)).state
    model.train()
    answers = []
    for given in (features, other):
        torch.manual_seed(0)
        answers.append(model.forward_features(given, state, n_frames).logits)
    torch.testing.assert_close(answers[0][0], answers[1][0], atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(answers[0][1, :3], answers[1][1, :3], atol=TOLERANCE, rtol=TOLERANCE)


def check_training(model):
    """Two clips in training, the second under autocast: every weight gets a gradient, and the memory keeps
    full precision."""
    varied(model).train()
    labels = torch.tensor([[0, 1, 2, 0, -1, 1], [2, 2, 1, -1, -1, -1]])
    n_frames = torch.tensor([6, 3])
    first = model.forward_features(frames(model, 2, 6), None, n_frames)
    loss = _loss(model, first, labels)
    with torch.autocast("cpu", torch.bfloat16):
        second = model.forward_features(frames(model, 2, 6, seed=1), first.state, n_frames)
    loss = loss + _loss(model, second, labels)
    loss.backward()
    assert torch.isfinite(loss) and second.state.frame_index == (12, 12)
    assert {tensor.dtype for tensor in second.state.tensors()} == {torch.float32}
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not silent, f"no gradient reaches {silent}"


def _loss(model, output, labels):
    own = model.training_loss(
        output, labels, torch.rand(labels.shape, generator=torch.Generator().manual_seed(2))
    )
    loss = torch.nn.functional.cross_entropy(
        output.logits.float().flatten(0, 1), labels.flatten(), ignore_index=-1
    )
    return loss if own is None else loss + own


def n_parameters(network, **settings):
    """Parameters of a network at its published size."""
    with torch.device("meta"):
        model = network(network.config_class(**settings))
    return sum(parameter.numel() for parameter in model.parameters())
