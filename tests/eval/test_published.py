"""The paper's rows as data: complete, sourced, and with the warnings that belong to them."""

import pytest

import surgicalmamba as sm
from surgicalmamba.data.labels import known_datasets
from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.protocols import PROTOCOLS, score_runs
from surgicalmamba.eval.published import load_published, load_published_ablation, own_rows, published_datasets
from surgicalmamba.eval.score import Settings

OURS = {  # the SurgicalMamba rows of the paper: accuracy, precision, recall, Jaccard
    ("cholec80", 0): (96.1, 94.9, 94.4, 88.5),
    ("cholec80", 1): (94.6, 89.6, 90.5, 82.7),
    ("m2cai16", 0): (92.2, 91.8, 91.4, 83.3),
    ("autolaparo", 0): (89.5, 90.6, 76.2, 68.9),
    ("cataract101", 0): (96.9, 96.2, 96.7, 93.2),
    ("heichole", 0): (86.4, 82.0, 78.0, 70.3),
}
ROWS = {
    "cholec80": [18, 6],
    "m2cai16": [6],
    "autolaparo": [6],
    "cataract101": [7],
    "heichole": [6],
    "heico": [6],
    "grasp": [6],
}


def test_all_seven_datasets_of_the_paper_have_their_rows():
    assert published_datasets() == known_datasets() == sorted(ROWS)
    assert {name: [len(block.rows) for block in load_published(name).blocks] for name in ROWS} == ROWS


@pytest.mark.parametrize(("dataset", "block"), OURS)
def test_the_papers_own_row_is_the_last_of_its_block(dataset, block):
    row = load_published(dataset).blocks[block].rows[-1]
    assert row.method == "SurgicalMamba"
    assert (
        tuple(row.values[metric][0] for metric in ("accuracy", "precision", "recall", "jaccard"))
        == OURS[dataset, block]
    )


def test_heico_and_grasp_have_their_own_columns():
    assert load_published("heico").blocks[0].rows[-1].values == {
        "accuracy": (72.1, 15.1),
        "jaccard": (47.3, 18.1),
    }
    assert load_published("grasp").blocks[0].rows[-1].values == {"map": (77.7, 12.4)}


@pytest.mark.parametrize("dataset", sorted(ROWS))
def test_every_table_states_source_protocols_and_warnings(dataset):
    table = load_published(dataset)
    assert "SurgicalMamba paper" in table.source
    for block in table.blocks:
        assert set(block.protocols) <= set(PROTOCOLS)
        assert block.warnings
        for row in block.rows:
            assert row.values and set(row.values) <= set(block.metrics)
            assert all(0 < mean <= 100 for mean, _ in row.values.values())


def test_a_row_that_mixes_protocols_says_so():
    dacat = next(row for row in load_published("autolaparo").blocks[0].rows if row.method == "DACAT")
    assert "mixes protocols" in dacat.warning


def test_numbers_that_the_paper_does_not_report_stay_absent():
    endonet = next(row for row in load_published("cholec80").blocks[0].rows if row.method == "EndoNet")
    assert set(endonet.values) == {"accuracy", "precision", "recall"}


def test_ones_own_row_carries_the_fields_spread_under_each_protocol():
    block = load_published("cholec80").blocks[1]
    labels = [[0, 0, 1, 1], [0, 0, 0, 1]]
    report = sm.score(labels, [[0, 1, 1, 1], [0, 0, 0, 1]], n_phases=7, protocol="all")
    rows = own_rows(block, report)
    assert [row.method for row in rows] == ["yours, strict-b", "yours, strict", "yours, paper"]
    accuracy, jaccard = (report.scores["strict-b"].metrics[name] for name in ("accuracy", "jaccard"))
    assert rows[0].values["accuracy"] == (accuracy["mean"], accuracy["std_videos"])
    assert rows[0].values["jaccard"] == (jaccard["mean"], jaccard["std_phases"])


def test_pooled_and_per_video_map_are_two_rows():
    pair = sm.metrics.make_pair("v", [0, 1], [0, 1], 11, [[0.9, 0.1] + [0] * 9, [0.2, 0.8] + [0] * 9])
    report = score_runs([[pair]], Settings(tuple(f"p{i}" for i in range(11))), ["map"])
    assert [row.method for row in own_rows(load_published("grasp").blocks[0], report)] == [
        "yours, map",
        "yours, map per video",
    ]


def test_json_form_and_unknown_dataset():
    document = load_published("cholec80").as_dict()
    assert document["blocks"][0]["rows"][0]["accuracy"] == {"mean": 78.8, "spread": 4.7}
    with pytest.raises(ConfigError, match="no published rows for 'jigsaws'"):
        load_published("jigsaws")


# Copied by hand from the paper's table: relaxed, then strict accuracy, precision, recall, Jaccard, each with
# its deviation.
ABLATION = {
    "vanilla-mamba2": (
        "93.82 5.09 92.02 6.30 90.47 10.35 83.37 10.62",
        "92.45 5.23 86.97 11.50 86.16 12.38 77.69 13.57",
    ),
    "z-only": (
        "94.70 4.29 92.46 5.10 93.05 6.11 85.08 9.25",
        "93.16 4.48 86.97 9.78 88.84 7.44 79.21 12.11",
    ),
    "without-z": (
        "95.60 4.20 92.97 4.25 93.71 7.95 87.05 9.05",
        "94.01 4.28 88.07 7.68 89.77 9.82 80.71 12.07",
    ),
    "without-lambda": (
        "95.08 6.07 93.37 4.47 93.49 5.04 86.70 8.75",
        "93.69 6.05 88.72 8.06 89.26 7.30 81.12 11.99",
    ),
    "without-fast": (
        "95.85 4.03 94.28 4.03 93.47 8.65 88.03 9.44",
        "94.27 4.14 88.92 8.91 88.67 10.84 81.24 12.69",
    ),
    "without-smooth": (
        "95.84 3.69 93.54 4.71 94.43 5.41 87.70 8.48",
        "94.38 3.82 88.55 8.59 90.36 7.80 81.80 11.81",
    ),
    "full": (
        "96.05 3.55 94.91 4.24 94.38 6.16 88.48 8.14",
        "94.61 3.71 89.59 8.70 90.48 8.11 82.73 11.50",
    ),
}


def test_the_papers_component_ablation_is_data_with_full_first():
    table = load_published_ablation()
    assert [block.protocols[0] for block in table.blocks] == ["relaxed-published", "strict"]
    for index, block in enumerate(table.blocks):
        assert block.rows[0].method == "full" and set(block.protocols) <= set(PROTOCOLS)
        found = {
            row.method: [number for pair in row.values.values() for number in pair] for row in block.rows
        }
        assert found == {
            name: [float(number) for number in texts[index].split()] for name, texts in ABLATION.items()
        }
