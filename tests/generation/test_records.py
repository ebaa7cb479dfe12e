import json
import os
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from dpaudit.generation.config import DataConfig
from dpaudit.generation.records import Record, read_records, read_texts, require_records, write_without_row
from dpaudit.runs import InputError

SECRET = "Zanzibar-secret"


def data(path: Path, **fields: Any) -> DataConfig:
    return DataConfig(path=str(path), labels=("a", "b"), **fields)


def failure(config: DataConfig) -> str:
    with pytest.raises(InputError) as caught:
        read_records(config)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__ if not caught.value.__suppress_context__ else None)
    return str(caught.value)


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"text": "one", "label": "a"}, {"text": 'two\nlines, "quoted"', "label": "b"}, {"text": "one", "label": "a"}]
EXPECTED = (Record("a", "one"), Record("b", 'two\nlines, "quoted"'))


def test_csv_jsonl_and_parquet_give_the_same_distinct_records(tmp_path: Path) -> None:
    csv = tmp_path / "x.csv"
    csv.write_text('text,label\none,a\n"two\nlines, ""quoted""",b\none,a\n')
    parquet = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), parquet)
    for path in (csv, parquet, jsonl(tmp_path / "x.jsonl", *ROWS)):
        assert read_records(data(path)).records == EXPECTED


def test_a_folder_has_a_folder_for_each_label_and_odd_bytes_are_replaced(tmp_path: Path) -> None:
    for label, content in (("a", b"caf\xe9"), ("b", b"two")):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.txt").write_bytes(content)
    assert read_records(data(tmp_path)).records == (Record("a", "caf\ufffd"), Record("b", "two"))


def test_other_columns_and_whole_numbers_as_labels(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", {"body": "one", "topic": 3})
    config = DataConfig(path=str(path), text="body", label="topic", labels=("3",))
    assert read_records(config).records == (Record("3", "one"),)


def test_labels_have_names_of_their_own_where_the_column_holds_others(tmp_path: Path) -> None:
    rows = ({"text": "good", "label": 2}, {"text": "bad", "label": "1"})
    config = DataConfig(path=str(jsonl(tmp_path / "x.jsonl", *rows)), labels=("No", "Yes"), label_values=("1", "2"))
    assert read_records(config).records == (Record("No", "bad"), Record("Yes", "good"))
    path = jsonl(tmp_path / "y.jsonl", {"text": SECRET, "label": "Yes"})
    told = failure(DataConfig(path=str(path), labels=("No", "Yes"), label_values=("1", "2")))
    assert "the label is not in data.label_values" in told and "fixed beforehand: 1, 2." in told


def test_classes_of_a_hubs_data_set_are_read_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    found = datasets.Dataset.from_dict(
        {"content": ["good", "bad"], "label": [1, 0]},
        features=datasets.Features(
            {"content": datasets.Value("string"), "label": datasets.ClassLabel(names=["1", "2"])}
        ),
    )

    def load(name: str, split: str) -> datasets.Dataset:
        asked.append((name, split))
        return found

    monkeypatch.setattr(datasets, "load_dataset", load)
    config = DataConfig(
        dataset="org/name", split="train[:90%]", text="content", labels=("No", "Yes"), label_values=("1", "2")
    )
    assert read_records(config).records == (Record("No", "bad"), Record("Yes", "good"))
    assert read_texts("dataset:org/name", "content", "clustering.public", "clustering.public_text") == ("bad", "good")
    assert asked == [("org/name", "train[:90%]"), ("org/name", "train")]


def test_without_labels_no_column_of_labels_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wanted = tmp_path / "records.csv", (Record("", "one"), Record("", "two"))
    path.write_text("text,label\none,a\ntwo,b\none,b\n")
    found = read_records(DataConfig(path=str(path)))
    assert (found.records, found.repeated) == (wanted, 1)
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "1.txt").write_text("one")
    (folder / "2.txt").write_text("two")
    assert read_records(DataConfig(path=str(folder))).records == wanted
    (tmp_path / "empty").mkdir()
    assert "there is no .txt inside" in failure(DataConfig(path=str(tmp_path / "empty")))
    rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: rows)
    assert read_records(DataConfig(dataset="someone/notes")).records == wanted


def test_words_that_pandas_takes_for_missing_are_text(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text,label\nNA,a\n")
    assert read_records(data(path)).records == (Record("a", "NA"),)


def test_a_lone_surrogate_becomes_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "x\\ud800", "label": "a"}\n')
    assert read_records(data(path)).records == (Record("a", "x?"),)


def test_a_bad_row_is_named_without_its_text(tmp_path: Path) -> None:
    for row, message in [
        ({"text": "", "label": "a"}, "row 2, column 'text': the value is missing"),
        ({"text": None, "label": "a"}, "row 2, column 'text': the value is missing"),
        ({"text": " \n", "label": "a"}, "row 2, column 'text': the value is missing"),
        ({"text": SECRET}, "row 2, column 'label': the value is missing"),
        ({"text": [SECRET], "label": "a"}, "row 2, column 'text': the value is a list"),
        ({"text": 1.5, "label": "a"}, "row 2, column 'text': the value is a float"),
        ({"text": SECRET, "label": SECRET}, "row 2, column 'label': the label is not in data.labels"),
        ([SECRET], "row 2: this is not a JSON object"),
    ]:
        path = jsonl(tmp_path / "x.jsonl", {"text": SECRET, "label": "a"}, row)
        assert f"{path}: {message}" in failure(data(path))


def test_a_bad_file_is_named_without_its_text(tmp_path: Path) -> None:
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"text": "' + SECRET)
    assert "row 1: this is not valid JSON" in failure(data(broken))
    latin = tmp_path / "x.csv"
    latin.write_bytes(f"text,label\n{SECRET}".encode() + b"\xe9,a\n")
    assert "not UTF-8" in failure(data(latin))
    quotes = tmp_path / "y.csv"
    quotes.write_text(f'text,label\n"{SECRET}"x,a\n')
    assert "not valid CSV" in failure(data(quotes))
    parquet = tmp_path / "x.parquet"
    parquet.write_text(SECRET)
    assert "not a Parquet file" in failure(data(parquet))
    other = tmp_path / "x.xlsx"
    other.write_text(SECRET)
    assert ".csv, .jsonl, .parquet" in failure(data(other))
    (tmp_path / "empty").mkdir()
    assert "LABEL/*.txt" in failure(data(tmp_path / "empty"))
    assert "nothing is there" in failure(data(tmp_path / "absent.csv"))


@pytest.mark.parametrize("name", ["records.csv", "folder/a/text.txt"])
def test_what_may_never_end_is_not_read(tmp_path: Path, name: str) -> None:
    odd = tmp_path / name
    odd.parent.mkdir(parents=True, exist_ok=True)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(odd)
        assert f"{odd} is no plain file" in failure(data(tmp_path / Path(name).parts[0]))
        odd.unlink()


def test_a_misspelt_column_is_told_whatever_separates_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('label;text\na;"one, and two"\n')
    assert "column 'body': there is no such column" in failure(data(path, text="body"))


def test_delimiters_are_found_by_the_columns_and_encodings_by_their_marks(tmp_path: Path) -> None:
    path, wanted = tmp_path / "x.csv", (Record("a", "é, or so"),)
    for separator, encoding in [(";", "utf-8"), ("\t", "utf-8-sig"), ("|", "utf-16")]:
        path.write_bytes(f'label{separator}text\na{separator}"é, or so"\n'.encode(encoding))
        assert read_records(data(path)).records == wanted, (separator, encoding)
    path.write_bytes("label;more,text\na;é, or so\n".encode("cp1252"))
    asked = data(path, encoding="cp1252", delimiter=";", text="more,text")
    assert read_records(asked).records == wanted
    assert "this is not UTF-8 text. Name its own in data.encoding" in failure(data(path))
    assert "this is not ASCII text" in failure(data(path, encoding="ascii"))
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "é, or so", "label": "a"}\n', encoding="utf-16")
    assert read_records(data(lines)).records == wanted
    for wrong in ({"encoding": "base64"}, {"encoding": "none-such"}, {"delimiter": ";;"}, {"delimiter": '"'}):
        with pytest.raises(ValidationError):
            data(path, **wrong)


def test_a_quote_that_is_never_closed_is_found_at_its_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'text,label\none,a\n"{SECRET},b\n' + "more,a\n" * 20)
    assert f"{path}: row 2: a quote is opened here and never closed" in failure(data(path))


def test_rows_with_other_labels_are_skipped_where_that_is_asked_for(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", {"text": "one", "label": "a"}, {"text": SECRET, "label": "c"})
    assert "data.other_labels: skip" in failure(data(path))
    found = read_records(data(path, other_labels="skip"))
    assert (found.records, found.repeated, require_records(data(path, other_labels="skip"))) == (EXPECTED[:1], 0, 1)


def test_data_without_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text,label\n")
    for config in (data(path), data(jsonl(tmp_path / "x.jsonl"))):
        assert "data.path" in failure(config) and "holds no records" in failure(config)
        with pytest.raises(InputError, match="holds no records"):
            require_records(config)
    path.write_text("text,label\none,c\n")
    assert "no records with one of data.labels" in failure(data(path, other_labels="skip"))


def test_a_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "noisy_package" / "parts" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "noisy_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "1.txt").write_text("one")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = DataConfig(path="package:noisy_package/parts", labels=("a",))
    assert read_records(config).records == (Record("a", "one"),)
    assert "noisy_package" not in sys.modules


def test_a_package_that_is_not_there_is_named() -> None:
    for name in ["no_such_package_here/x", "os.path/x", "/x"]:
        assert "no package" in failure(DataConfig(path=f"package:{name}", labels=("a",)))


def test_without_the_datasets_library_the_remedy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "Install it" in failure(DataConfig(dataset="org/name", labels=("a",)))


def test_records_do_not_show_their_text() -> None:
    assert SECRET not in repr(Record("a", SECRET))


def test_a_csv_without_a_header_shows_nothing_of_its_first_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{SECRET} is the first row,a\nmore,b\n")
    assert "2 columns" in failure(data(path))


def test_a_csv_needs_one_name_for_each_column(tmp_path: Path) -> None:
    for text, message in [("", "is empty"), ("text,text,label\n1,2,a\n", "the same name")]:
        path = tmp_path / "x.csv"
        path.write_text(text)
        assert message in failure(data(path))


def test_blank_lines_of_jsonl_are_passed_over_and_deep_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "one", "label": "a"}\n\n')
    assert read_records(data(path)).records == (Record("a", "one"),)
    path.write_text("[" * 200_000 + "\n")
    assert "not valid JSON" in failure(data(path))


def test_records_of_a_user_are_counted_and_users_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("text,label,who\none,a,zoe\ntwo,a,zoe\ntwo,a,zoe\nthree,b,max\ntwo,a,max\n")
    config = DataConfig(path=str(path), labels=("a", "b"), user="who")
    found = read_records(config)
    assert len(found.records) == 3
    assert found.most_per_user == 2
    assert "zoe" not in repr(found)
    assert read_records(config.model_copy(update={"user": None})).most_per_user is None


def test_one_user_is_one_name_in_nfc_without_idle_white_space(tmp_path: Path) -> None:
    """Capitals and leading zeros tell users apart; how a name was composed or padded does not."""
    path = tmp_path / "x.jsonl"
    for names, most in (
        (["Zo\u00e9", "Zoe\u0301", " Zo\u00e9\t", "Zo\u00e9"], 4),
        (["max  may", "max may", "max\u00a0may", "maxmay"], 3),
        (["7", 7, "07", "seven"], 2),
        (["zoe", "Zoe", "ZOE", "zo\u00eb"], 1),
    ):
        rows = [{"text": f"{number}", "label": "a", "who": name} for number, name in enumerate(names)]
        assert read_records(data(jsonl(path, *rows), user="who")).most_per_user == most


def test_rows_are_counted_for_each_user_who_has_them(tmp_path: Path) -> None:
    """Equal rows of one user are one record; of two users they count for both, whoever comes first."""
    path = tmp_path / "x.csv"
    path.write_text("text,label,who\n" + "same,a,max\n" * 5 + "same,a,zoe\nother,a,zoe\n")
    assert read_records(data(path, user="who")).most_per_user == 2


def test_a_record_without_a_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("text,label,who\none,a,\n")
    with pytest.raises(InputError, match="column 'who': the value is missing"):
        read_records(DataConfig(path=str(path), labels=("a",), user="who"))


def test_a_csv_row_has_a_field_for_each_column(tmp_path: Path) -> None:
    for row, found in [(f"{SECRET},a,more", "more"), (SECRET, "fewer")]:
        path = tmp_path / "x.csv"
        path.write_text(f"text,label\none,a\n{row}\n")
        assert f"{path}: row 2: the row has {found} fields than the first line" in failure(data(path))


def test_a_missing_column_of_users_is_blamed_on_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"text,label,{SECRET}\none,a,zoe\n")
    message = failure(data(path, user="who"))
    assert "column 'who': there is no such column" in message
    assert "in data.user" in message
    assert "zoe" not in message
    assert "in data.user" in failure(data(jsonl(tmp_path / "x.jsonl", {"text": SECRET, "label": "a"}), user="who"))


def test_a_folder_of_text_files_names_no_users(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text(SECRET)
    assert "data.user: a folder of text files" in failure(data(tmp_path, user="who"))


def test_a_row_is_left_out_and_every_other_byte_stays(tmp_path: Path) -> None:
    for name, content, number, rest in (
        ("a.csv", b'text\n"one\ntwo, ""2"""\n\nthree\n', 1, b"text\n\nthree\n"),
        ("a.csv", b'text\n"one\ntwo"\r\n\nthree', 2, b'text\n"one\ntwo"\r\n\n'),
        ("semicolons.CSV", b'n;text\n1;"one, or\ntwo"\n2;three\n', 1, b"n;text\n2;three\n"),
        ("header.csv", b'\xef\xbb\xbf"the\ntext",n\none,1\ntwo,2\n', 1, b'\xef\xbb\xbf"the\ntext",n\ntwo,2\n'),
        ("latin.csv", b"text\ncaf\xe9\ntwo\n", 2, b"text\ncaf\xe9\n"),
        ("lines.txt", b"caf\xc3\xa9\n\ntwo\r\nthree", 2, b"caf\xc3\xa9\n\nthree"),
    ):
        (tmp_path / name).write_bytes(content)
        write_without_row(tmp_path / name, number, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == rest, name
    for name, content, problem in (
        ("open.csv", b'text\n"one\n', "not valid CSV"),
        ("wide.csv", "text\none\n".encode("utf-16"), "zero bytes"),
        ("records.parquet", b"PAR1\0\nPAR1", "zero bytes"),
        ("empty.csv", b"", "has no row 1"),
        ("header.csv", b"text\n", "has no row 1"),
        ("blank.txt", b" \n", "has no row 1"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=problem):
            write_without_row(tmp_path / name, 1, tmp_path / "out")
