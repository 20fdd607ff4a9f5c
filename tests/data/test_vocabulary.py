"""Phase names as data: what a label text means, and what a wrong one is answered with."""

import csv
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.data.labels import PhaseVocabulary, known_datasets, load_vocabulary
from surgicalmamba.errors import ConfigError, DataError

SIZES = {
    "cholec80": 7,
    "m2cai16": 8,
    "cataract101": 10,
    "autolaparo": 7,
    "heichole": 7,
    "heico": 14,
    "grasp": 11,
}


def test_the_seven_datasets_of_the_paper_are_known_with_the_class_counts_of_its_table():
    assert {name: len(load_vocabulary(name)) for name in known_datasets()} == SIZES


@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_shipped_vocabulary_states_its_source(name):
    assert len(load_vocabulary(name).source) > 40


def test_m2cai16_is_cholec80_shifted_by_one():
    assert load_vocabulary("m2cai16").names[1:] == load_vocabulary("cholec80").names


def test_cataract101_names_are_those_of_the_distributed_file(real_data):
    with open(real_data("cataract101/phases.csv"), encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter=";"))[1:]
    vocabulary = load_vocabulary("cataract101")
    assert [(int(number), meaning.strip()) for number, meaning in rows] == list(
        enumerate(vocabulary.names, start=vocabulary.first_id)
    )


@pytest.mark.parametrize(
    "text",
    [
        "CalotTriangleDissection",
        "calot_triangle_dissection",
        "Calot Triangle Dissection ",
        "CALOT-TRIANGLE-DISSECTION",
    ],
)
def test_case_spacing_and_underscores_do_not_matter(text):
    assert load_vocabulary("cholec80").id_of(text) == 1


def test_ids_count_from_where_the_dataset_counts_unless_told_otherwise():
    autolaparo = load_vocabulary("autolaparo")
    assert autolaparo.id_of("1") == 0
    assert autolaparo.id_of("7") == 6
    assert autolaparo.id_of("1", first_id=0) == 1
    with pytest.raises(
        DataError, match=r"phase id 0 is outside 1 to 7 of autolaparo; if the ids count from 0, say so"
    ):
        autolaparo.id_of("0")
    with pytest.raises(DataError, match="count from 1"):
        load_vocabulary("cholec80").id_of("7")


def test_id_of_name_refuses_numbers():
    with pytest.raises(DataError, match="unknown phase '3'"):
        load_vocabulary("cholec80").id_of_name("3")


def test_the_correct_spelling_of_a_misspelt_phase_is_accepted():
    assert (
        load_vocabulary("cataract101").id_of("Phacoemulsification")
        == load_vocabulary("cataract101").id_of("Phacoemulsificiation")
        == 4
    )


def test_an_unknown_name_is_answered_with_the_nearest_one():
    with pytest.raises(DataError, match="did you mean 'GallbladderPackaging'"):
        load_vocabulary("cholec80").id_of("GallbladerPackging")
    with pytest.raises(DataError, match="its phases are Preparation, Calot"):
        load_vocabulary("cholec80").id_of("xyz")


def test_an_unknown_dataset_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'cholec80'"):
        load_vocabulary("Cholec-80")
    with pytest.raises(ConfigError, match="known are autolaparo, "):
        load_vocabulary("zzzz")


def test_a_users_yaml_file_gives_a_vocabulary(tmp_path):
    path = tmp_path / "hernia.yaml"
    path.write_text(
        "phases: [Access, Mesh placement, Closure]\nsource: our clinic\nfirst_id: 1\nsplits: {train: [a]}\n",
        encoding="utf-8",
    )
    vocabulary = load_vocabulary(path)
    assert (vocabulary.dataset, vocabulary.names, vocabulary.source) == (
        "hernia",
        ("Access", "Mesh placement", "Closure"),
        "our clinic",
    )
    assert vocabulary.id_of("mesh_placement") == vocabulary.id_of("2") == 1
    assert load_vocabulary(str(path)) == vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("phases: [Access, 2]", "phase 1 is 2, not a text"),
        ("phases: [Access, '2']", "a name needs a letter"),
        ("phases: [Access, ac_cess]", "differ only in case or spacing"),
        ("names: [Access]", "no `phases:` list"),
        ("phases: []", "no `phases:` list"),
        ("phases: [Access", "not valid YAML"),
        ("- Access", "no `phases:` list"),
        ("phases: [A, B]\nfirst_id: one", "`first_id:` is 'one'"),
        ("phases: [A, B]\naliases: {C: D}", "stands for 'D', which is no phase"),
        ("phases: [A, B]\naliases: {A: B}", "is already another phase"),
        ("phases: [A, B]\naliases: [A]", "`aliases:` must map"),
    ],
)
def test_a_broken_yaml_file_is_named_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises((DataError, ConfigError), match=message) as caught:
        load_vocabulary(path)
    assert "mine" in str(caught.value)


def test_a_missing_yaml_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the phase list .*nowhere\.yaml"):
        load_vocabulary(tmp_path / "nowhere.yaml")


def test_a_vocabulary_cannot_be_changed():
    with pytest.raises(AttributeError):
        load_vocabulary("grasp").names = ()


words = st.text(string.ascii_letters + " _", min_size=1).filter(lambda text: text.strip(" _"))


@given(
    st.lists(
        words,
        min_size=1,
        max_size=12,
        unique_by=lambda text: text.replace(" ", "").replace("_", "").casefold(),
    )
)
def test_every_name_and_every_id_finds_its_own_phase(names):
    vocabulary = PhaseVocabulary("made up", tuple(names))
    for number, name in enumerate(names):
        assert (
            vocabulary.id_of(name)
            == vocabulary.id_of(name.upper())
            == vocabulary.id_of(str(number))
            == number
        )
