import torch

from peers.contract import check_contract, frames, n_parameters, varied
from surgicalmamba.peers.tecno import TeCNO
from surgicalmamba.peers.trans_svnet import TransSVNet, TransSVNetConfig

SMALL = TransSVNetConfig(
    d_feature=5, n_phases=3, n_layers=3, n_maps=4, window=6, n_heads=2, d_head=4, d_hidden=5
)


def test_trans_svnet_keeps_the_contract():
    check_contract(TransSVNet(SMALL))


def test_the_transformer_adds_the_published_number_of_parameters_to_tecno():
    added = [
        n_parameters(TransSVNet, d_feature=width) - n_parameters(TeCNO, d_feature=width)
        for width in (2048, 768)
    ]
    assert [round(n / 1e6, 3) for n in added] == [0.030, 0.021]


def slow_layer(layer, x, source):
    """Attention head by head, query by query, then the feed-forward layer, with residual sums normalised
    to mean 0 and variance 1."""

    def normalised(values):
        return (values - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()

    rows = []
    for token in x:
        heads = []
        for number in range(layer.n_heads):
            own = slice(number * 4, number * 4 + 4)
            query = layer.query.weight[own] @ token
            scores = (
                torch.stack([query @ (layer.key.weight[own] @ entry) for entry in source]) / 2.0
            )  # square root of a head's width
            heads.append(
                torch.softmax(scores, dim=0)
                @ torch.stack([layer.value.weight[own] @ entry for entry in source])
            )
        y = normalised(token + layer.out.weight @ torch.cat(heads))
        rows.append(
            normalised(y + layer.feed_forward[2].weight @ torch.relu(layer.feed_forward[0].weight @ y))
        )
    return torch.stack(rows)


def test_the_frame_asks_the_last_answers_of_tecno_with_zeros_before_the_start():
    model = varied(TransSVNet(SMALL))
    features = frames(model, 1, 9)
    answers = torch.cat([torch.zeros(5, 3), model.tecno.forward_features(features).logits[0]])
    logits = model.forward_features(features).logits[0]
    for t in range(9):
        encoded = slow_layer(model.encoder, answers[t : t + 6], answers[t : t + 6])
        query = torch.tanh(model.embed.weight @ features[0, t])[None]
        torch.testing.assert_close(
            logits[t], slow_layer(model.decoder, query, encoded)[0], atol=1e-5, rtol=1e-5
        )


def test_tecno_learns_from_its_own_answers_alone():
    model = TransSVNet(SMALL).train()
    output = model.forward_features(frames(model, 1, 7))
    output.logits.square().sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in model.tecno.parameters())
    model.training_loss(output, torch.tensor([[0, 1, 2, -1, 0, 1, 2]]), torch.zeros(1, 7)).backward()
    assert all(parameter.grad is not None for parameter in model.tecno.parameters())


def test_the_transformer_learns_from_answers_without_dropout_and_tecno_with_it():
    model = varied(TransSVNet(SMALL))
    features = frames(model, 2, 9)
    live = model.forward_features(features[:, :5])
    later = model.forward_features(features[:, 5:], live.state)
    torch.manual_seed(0)
    trained = model.train().forward_features(features[:, :5])
    assert model.tecno.training
    torch.testing.assert_close(trained.logits, live.logits)
    torch.testing.assert_close(
        model.forward_features(features[:, 5:], trained.state).logits, later.logits
    )  # what is carried on, too
    assert not torch.allclose(trained.auxiliary["tecno"], live.state.answers[:, -5:], atol=1e-3)


def test_the_own_loss_is_the_cross_entropy_of_every_stage():
    model = TransSVNet(SMALL.with_(dropout=0.0)).train()
    features, labels = frames(model, 1, 4), torch.tensor([[0, 1, 2, 1]])
    output = model.forward_features(features)
    staged = model.tecno.temporal(features, model.tecno.initial_state(1))
    said = [*staged.auxiliary.values(), staged.logits]
    expected = sum(torch.nn.functional.cross_entropy(logits[0], labels[0]) for logits in said)
    assert len(said) == 2
    torch.testing.assert_close(model.training_loss(output, labels, torch.zeros(1, 4)), expected)
    weights = torch.tensor([0.1, 1.0, 2.0])
    weighted = sum(torch.nn.functional.cross_entropy(logits[0], labels[0], weights) for logits in said)
    torch.testing.assert_close(model.training_loss(output, labels, torch.zeros(1, 4), weights), weighted)
