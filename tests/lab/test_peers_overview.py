"""`study peers-overview`: comparisons on several datasets joined into one table and figure."""

import json

import pytest

from command import call
from surgicalmamba_lab.studies.peers_overview import draw_overview, mean_ranks, read_overview, table

COSTS = [
    {"frames": frames, "frame_ms": ms, "p95_ms": ms, "state_bytes": 2_000_000}
    for frames, ms in ((100, 1.0), (20_000, 7.0))
]


def finished(folder, dataset, scores, published=(), study="peers", seeds=(3, 3)):
    """A folder of `study peers`: network -> (Jaccard, interval of the first network minus this one)."""
    folder.mkdir()
    document = {
        "study": study,
        "dataset": dataset,
        "rows": {
            name: {"protocols": {"strict": {"jaccard": {"mean": mean, "std_runs": 0.5}}}}
            for name, (mean, *_) in scores.items()
        },
        "memory": dict.fromkeys(scores, "O(1)"),
        "step_costs": dict.fromkeys(scores, COSTS),
        "step_costs_published_size": {
            name: [{**cost, "frame_ms": 50 * cost["frame_ms"]} for cost in COSTS] for name in published
        },
        "compared_with_first": {
            name: {"jaccard": {"seeds": seeds, "low": low, "high": high}}
            for name, (_, low, high) in list(scores.items())[1:]
        },
    }
    (folder / "results.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def tools(tmp_path):
    return finished(
        tmp_path / "tools",
        "tools",
        {"ours": (70.0, 0, 0), "tcn": (72.0, -3.0, -1.0), "hmm": (40.0, 25.0, 35.0)},
    )


@pytest.fixture
def robot(tmp_path):
    scores = {
        "ours": (50.0, 0, 0),
        "hmm": (30.0, 15.0, 25.0),
        "tcn": (49.0, -1.0, 3.0),
        "only-here": (99.0, -60.0, -40.0),
    }
    return finished(tmp_path / "robot", "robot", scores, published=("ours", "tcn"))


def test_equal_scores_share_their_ranks_and_ranks_are_averaged_over_datasets():
    ranks = mean_ranks([{"x": 3.0, "y": 2.0, "z": 2.0}, {"x": 1.0, "y": 2.0, "z": 3.0}])
    assert ranks == {"x": (1 + 3) / 2, "y": (2.5 + 2) / 2, "z": (2.5 + 1) / 2}


def test_networks_that_every_comparison_has_are_ranked_and_marked_where_a_difference_is_shown(tools, robot):
    overview = read_overview([tools, robot])
    assert {name: network.mean_rank for name, network in overview.networks.items()} == {
        "ours": 1.5,
        "tcn": 1.5,
        "hmm": 3.0,
    }
    assert overview.first == "ours"
    header, ours, tcn, hmm = table(overview)
    assert header == [
        "",
        "memory",
        "tools",
        "robot",
        "mean rank",
        "ms at 100",
        "ms at 20,000",
        "MB at 20,000",
    ]
    assert ours[2:5] == ["70.00 ± 0.50", "50.00 ± 0.50", "1.5"]
    assert tcn[2:4] == ["72.00 ± 0.50 ▲", "49.00 ± 0.50"] and hmm[2:4] == ["40.00 ± 0.50 ▼", "30.00 ± 0.50 ▼"]


def test_with_fewer_than_three_seeds_no_network_is_marked_ahead_or_behind(tmp_path):
    few = finished(tmp_path / "few", "tools", {"ours": (70.0, 0, 0), "tcn": (72.0, -3.0, -1.0)}, seeds=(2, 2))
    assert {row[0]: row[2] for row in table(read_overview([few]))[1:]} == {
        "ours": "70.00 ± 0.50",
        "tcn": "72.00 ± 0.50 ?",
    }


def test_costs_are_those_at_published_sizes_where_they_were_measured(tools, robot):
    assert [row[-3:] for row in table(read_overview([tools]))[1:]] == [["1.00", "7.00", "2.00"]] * 3
    both = read_overview([tools, robot])
    costs = {row[0]: row[-3:] for row in table(both)[1:]}
    assert costs == {
        "ours": ["50.00", "350.00", "2.00"],
        "tcn": ["50.00", "350.00", "2.00"],
        "hmm": ["-", "-", "-"],
    }


def test_a_later_comparison_on_a_dataset_counts_for_its_networks_but_not_for_the_first(
    tools, robot, tmp_path
):
    retrained = finished(
        tmp_path / "retrained",
        "tools",
        {"ours": (71.0, 0, 0), "hmm": (60.0, 8.0, 14.0), "extra": (1.0, 60.0, 80.0)},
    )
    overview = read_overview([tools, robot, retrained])
    assert overview.datasets == ("tools", "robot")
    scores = {name: network.strict_jaccard["tools"].jaccard for name, network in overview.networks.items()}
    assert scores == {"ours": 70.0, "tcn": 72.0, "hmm": 60.0}  # only what both datasets have
    assert read_overview([tools, retrained]).networks["extra"].strict_jaccard["tools"].standing == "behind"


def test_a_dataset_may_be_given_another_name(tools, robot):
    assert read_overview([f"seven tools={tools}", robot]).datasets == ("seven tools", "robot")


def test_the_figure_has_a_panel_per_dataset_and_one_for_the_cost(tools, robot):
    overview = read_overview([tools, robot])
    figure = draw_overview(overview)
    assert [axes.get_title() for axes in figure.axes] == ["tools", "robot", "live frame, published sizes"]
    drawn = [float(mark.lines[0].get_xdata()[0]) for mark in figure.axes[1].containers]
    assert drawn == [network.strict_jaccard["robot"].jaccard for network in overview.networks.values()]


def test_the_command_prints_the_table_and_refreshes_a_page(monkeypatch, capsys, tmp_path, tools, robot):
    page = tmp_path / "results.md"
    arguments = ("study", "peers-overview", tools, robot, "--out", tmp_path / "o", "--docs", page)
    for _ in range(2):
        code, printed, complaint = call(monkeypatch, capsys, *arguments)
        assert code == 0 and "72.00 ± 0.50 ▲" in printed, complaint
    text = page.read_text(encoding="utf-8")
    assert (
        text.count("## Peers at a glance") == 1
        and "| tcn | O(1) | 72.00 ± 0.50 ▲ | 49.00 ± 0.50 | 1.5 |" in text
    )
    assert (tmp_path / "images" / "peers-at-a-glance.png").is_file() and (
        tmp_path / "o" / "overview.svg"
    ).is_file()
    code, printed, _ = call(monkeypatch, capsys, "study", "peers-overview", tools, robot, "--json")
    assert code == 0 and json.loads(printed)["networks"]["hmm"]["mean_rank"] == 3.0


def test_what_is_no_finished_comparison_is_refused_in_one_line(monkeypatch, capsys, tmp_path, tools):
    (tmp_path / "text.json").write_text("{")
    ablation = finished(tmp_path / "ablation", "tools", {"full": (1.0, 0, 0)}, study="ablation")
    other = finished(tmp_path / "other", "robot", {"tcn": (1.0, 0, 0), "ours": (2.0, -2.0, -0.5)})
    older = finished(tmp_path / "older", "tools", {"ours": (1.0, 0, 0), "tcn": (2.0, -2.0, -0.5)})
    document = json.loads((older / "results.json").read_text())
    del document["compared_with_first"]["tcn"]["jaccard"]["seeds"]
    (older / "results.json").write_text(json.dumps(document))
    for studies, reason in [
        ([older], "its intervals ignore the seeds; call `study peers` again"),
        ([tmp_path / "nothing"], "cannot be read"),
        ([tmp_path / "text.json"], "not what `study peers` writes"),
        ([ablation], "study: Input should be 'peers'"),
        ([tools, other], "different networks (ours, tcn)"),
    ]:
        code, printed, complaint = call(
            monkeypatch, capsys, "study", "peers-overview", *studies, "--out", tmp_path / "o"
        )
        assert (code, printed) == (1, "") and reason in complaint and not (tmp_path / "o").exists()
