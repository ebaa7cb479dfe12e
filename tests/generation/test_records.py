import csv
import gzip
import json
import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from dpaudit.generation.config import DataConfig
from dpaudit.generation.records import Record, read_records, read_texts, write_without_row
from dpaudit.generation.run_data import read_run_records
from dpaudit.runs import InputError
from dpaudit.runs.manifest import Data

SECRET = "Zanzibar-secret"


def data(path: Path, **fields: Any) -> DataConfig:
    return DataConfig(path=str(path), labels=("a", "b"), **fields)


def failure(config: DataConfig) -> InputError:
    with pytest.raises(InputError) as caught:
        read_records(config)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(
        caught.value.__context__ if not caught.value.__suppress_context__ else None
    )
    return caught.value


def code_and_place(config: DataConfig) -> tuple[str, str]:
    """Which error it is, and where in the file."""
    error = failure(config)
    return error.code, error.field


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [
    {"text": "one", "label": "a"},
    {"text": 'two\nlines, "quoted"', "label": "b"},
    {"text": "one", "label": "a"},
]
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
    config = DataConfig(
        path=str(jsonl(tmp_path / "x.jsonl", *rows)), labels=("No", "Yes"), label_values=("1", "2")
    )
    assert read_records(config).records == (Record("No", "bad"), Record("Yes", "good"))
    path = jsonl(tmp_path / "y.jsonl", {"text": SECRET, "label": "Yes"})
    error = failure(DataConfig(path=str(path), labels=("No", "Yes"), label_values=("1", "2")))
    assert (
        error.code == "records.label"
        and "not in data.label_values" in error.problem
        and ": 1, 2." in error.remedy
    )


def test_classes_of_a_hubs_data_set_are_read_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str | None, str]] = []
    found = datasets.Dataset.from_dict(
        {"content": ["good", "bad"], "label": [1, 0]},
        features=datasets.Features(
            {"content": datasets.Value("string"), "label": datasets.ClassLabel(names=["1", "2"])}
        ),
    )

    def load(name: str, config: str | None, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        return found

    monkeypatch.setattr(datasets, "load_dataset", load)
    config = DataConfig(
        dataset="org/name",
        split="train[:90%]",
        text="content",
        labels=("No", "Yes"),
        label_values=("1", "2"),
    )
    assert read_records(config).records == (Record("No", "bad"), Record("Yes", "good"))
    assert read_texts(
        "dataset:org/name", "content", "clustering.public", "clustering.public_text"
    ) == ("bad", "good")
    assert asked == [("org/name", None, "train[:90%]"), ("org/name", None, "train")]


def test_without_labels_no_column_of_labels_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    error = failure(DataConfig(path=str(tmp_path / "empty")))
    assert error.code == "rows.no-files" and "no .txt inside" in error.problem
    rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: rows)
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
    for row, code, column in [
        ({"text": "", "label": "a"}, "records.no-text", ", column 'text'"),
        ({"text": None, "label": "a"}, "records.no-text", ", column 'text'"),
        ({"text": " \n", "label": "a"}, "records.no-text", ", column 'text'"),
        ({"text": SECRET}, "records.no-label", ", column 'label'"),
        ({"text": SECRET, "label": SECRET}, "records.label", ", column 'label'"),
        ([SECRET], "rows.no-object", ""),
    ]:
        path = jsonl(tmp_path / "x.jsonl", {"text": SECRET, "label": "a"}, row)
        error = failure(data(path))
        assert (error.file, error.field, error.code) == (str(path), f"row 2{column}", code)
    for value, kind in (([SECRET], "list"), (1.5, "float")):
        path = jsonl(
            tmp_path / "x.jsonl", {"text": SECRET, "label": "a"}, {"text": value, "label": "a"}
        )
        error = failure(data(path))
        assert (error.file, error.field, error.code) == (
            str(path),
            "row 2, column 'text'",
            "records.kind",
        )
        assert f" {kind}, " in error.problem


def test_a_bad_file_is_named_without_its_text(tmp_path: Path) -> None:
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"text": "' + SECRET)
    assert code_and_place(data(broken)) == ("rows.json", "row 1")
    latin = tmp_path / "x.csv"
    latin.write_bytes(f"text,label\n{SECRET}".encode() + b"\xe9,a\n")
    assert failure(data(latin)).code == "rows.encoding"
    quotes = tmp_path / "y.csv"
    quotes.write_text(f'text,label\n"{SECRET}"x,a\n')
    assert failure(data(quotes)).code == "rows.csv"
    parquet = tmp_path / "x.parquet"
    parquet.write_text(SECRET)
    assert failure(data(parquet)).code == "rows.no-parquet"
    other = tmp_path / "x.xlsx"
    other.write_text(SECRET)
    assert ".csv, .tsv, .jsonl, .parquet" in failure(data(other)).remedy
    (tmp_path / "empty").mkdir()
    assert "LABEL/*.txt" in failure(data(tmp_path / "empty")).problem
    assert "nothing is there" in failure(data(tmp_path / "absent.csv")).problem


@pytest.mark.parametrize("name", ["records.csv", "folder/a/text.txt"])
def test_what_may_never_end_is_not_read(tmp_path: Path, name: str) -> None:
    odd = tmp_path / name
    odd.parent.mkdir(parents=True, exist_ok=True)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(odd)
        assert f"{odd} is no plain" in failure(data(tmp_path / Path(name).parts[0])).problem
        odd.unlink()


def test_a_misspelt_column_is_told_whatever_separates_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('label;text\na;"one, and two"\n')
    assert code_and_place(data(path, text="body")) == ("rows.no-column", "column 'body'")


def test_delimiters_are_found_by_the_columns_and_encodings_by_their_marks(tmp_path: Path) -> None:
    path, wanted = tmp_path / "x.csv", (Record("a", "é, or so"),)
    for separator, encoding in [(";", "utf-8"), ("\t", "utf-8-sig"), ("|", "utf-16")]:
        path.write_bytes(f'label{separator}text\na{separator}"é, or so"\n'.encode(encoding))
        assert read_records(data(path)).records == wanted, (separator, encoding)
    path.write_bytes("label;more,text\na;é, or so\n".encode("cp1252"))
    asked = data(path, encoding="cp1252", delimiter=";", text="more,text")
    assert read_records(asked).records == wanted
    for encoding, name in ((None, "UTF-8"), ("ascii", "ASCII")):
        error = failure(data(path, encoding=encoding))
        assert (
            error.code == "rows.encoding"
            and name in error.problem
            and "data.encoding" in error.remedy
        )
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "é, or so", "label": "a"}\n', encoding="utf-16")
    assert read_records(data(lines)).records == wanted
    for wrong in (
        {"encoding": "base64"},
        {"encoding": "none-such"},
        {"delimiter": ";;"},
        {"delimiter": '"'},
    ):
        with pytest.raises(ValidationError):
            data(path, **wrong)


def test_a_quote_that_is_never_closed_is_found_at_its_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'text,label\none,a\n"{SECRET},b\n' + "more,a\n" * 20)
    error = failure(data(path))
    assert (error.file, error.field, error.code) == (str(path), "row 2", "rows.open-quote")


def test_rows_with_other_labels_are_skipped_where_that_is_asked_for(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "x.jsonl", {"text": "one", "label": "a"}, {"text": SECRET, "label": "c"}
    )
    assert "data.other_labels: skip" in failure(data(path)).remedy
    found = read_records(data(path, other_labels="skip"))
    assert (found.records, found.repeated) == (EXPECTED[:1], 0)
    rows = [{"text": " ", "label": "a"}, {"label": "a"}, {"text": "one", "label": " a\t"}]
    lacking = jsonl(tmp_path / "y.jsonl", *rows)
    assert code_and_place(data(lacking)) == ("records.no-text", "row 1, column 'text'")
    found = read_records(data(lacking, other_labels="skip"))
    assert (found.records, found.repeated) == (EXPECTED[:1], 0)


def test_a_runs_records_are_read_again_without_the_rows_that_it_skipped(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\nhello,a\nsomething,other\n,a\n")
    for other_labels, labels in (("skip", ("a",)), ("refuse", None)):
        asked = Data(labels=labels, other_labels=other_labels, records=1, digest="0" * 64)
        manifest = SimpleNamespace(data=asked)
        if labels is None:
            path.write_text("text\nhello\n")
        found = read_run_records(manifest, str(path), "run.json")
        assert found.records == (Record("" if labels is None else "a", "hello"),)


def test_tabs_separate_the_fields_of_a_tsv(tmp_path: Path) -> None:
    path = tmp_path / "x.TSV"
    path.write_text('\ufefftext\tlabel\n"one"\ta\n', encoding="utf-8")
    assert read_records(data(path)).records == EXPECTED[:1]


def test_blanks_around_labels_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text, label\none, a\none,a \none,a\n")
    found = read_records(data(path))
    assert (found.records, found.repeated) == (EXPECTED[:1], 2)
    coded = data(path, label_values=("b", "a"))
    assert [record.label for record in read_records(coded).records] == ["b"]


def test_data_without_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text,label\n")
    assert (failure(data(path)).where, failure(data(path)).code) == ("data.path", "records.none")
    blank = tmp_path / "blank.jsonl"
    blank.write_text("\n")
    assert failure(data(blank)).code == "records.none"
    for name in ("x.jsonl", "x.parquet", "y.csv"):
        (tmp_path / name).touch()
        error = failure(data(tmp_path / name))
        assert (error.file, error.code) == (str(tmp_path / name), "rows.empty")
    path.write_text("text,label\none,c\n")
    error = failure(data(path, other_labels="skip"))
    assert error.code == "records.none" and "one of data.labels" in error.problem


def test_a_package_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert "no package" in failure(DataConfig(path=f"package:{name}", labels=("a",))).problem


def test_without_the_datasets_library_the_remedy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = str(failure(DataConfig(dataset="org/name", labels=("a",))))
    assert "is not installed" in told and "pip install" in told


def test_records_do_not_show_their_text() -> None:
    assert SECRET not in repr(Record("a", SECRET))


def test_a_csv_without_a_header_shows_nothing_of_its_first_row(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{SECRET} is the first row,a\nmore,b\n")
    assert "2 columns" in failure(data(path)).remedy


def test_a_csv_needs_one_name_for_each_column(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text, told in [
        ("\n\r\n", ("rows.empty", "")),
        ("text,text,label\n1,2,a\n", ("rows.same-columns", "column 'text'")),
        ("text, text,label\n1,2,a\n", None),
        (" text,text ,label\n1,2,a\n", ("rows.same-columns", "column 'text'")),
        ("text,label,,,\n1,a,,,\n", None),
        ("x,text,x,label\n2,1,3,a\n", None),
    ]:
        path.write_text(text)
        if told is None:
            assert read_records(data(path)).records == (Record("a", "1"),), text
        else:
            assert code_and_place(data(path)) == told, text


def test_blank_lines_of_jsonl_are_passed_over_and_deep_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "one", "label": "a"}\n\n')
    assert read_records(data(path)).records == (Record("a", "one"),)
    path.write_text("[" * 200_000 + "\n")
    assert failure(data(path)).code == "rows.json"


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
        rows = [
            {"text": f"{number}", "label": "a", "who": name} for number, name in enumerate(names)
        ]
        assert read_records(data(jsonl(path, *rows), user="who")).most_per_user == most


def test_rows_are_counted_for_each_user_who_has_them(tmp_path: Path) -> None:
    """Equal rows of one user are one record.

    Those of two users count for both, whoever comes first.
    """
    path = tmp_path / "x.csv"
    path.write_text("text,label,who\n" + "same,a,max\n" * 5 + "same,a,zoe\nother,a,zoe\n")
    assert read_records(data(path, user="who")).most_per_user == 2


def test_a_record_without_a_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("text,label,who\none,a,\n")
    assert code_and_place(data(path, user="who")) == ("records.no-user", "row 1, column 'who'")


def test_a_csv_row_has_a_field_for_each_column(tmp_path: Path) -> None:
    for row, found in [(f"{SECRET},a,more", "more"), (SECRET, "fewer")]:
        path = tmp_path / "x.csv"
        path.write_text(f"text,label\none,a\n{row}\n")
        assert (
            code_and_place(data(path)) == ("rows.fields", "row 2")
            and found in failure(data(path)).problem
        )


def test_a_missing_column_of_users_is_blamed_on_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"text,label,{SECRET}\none,a,zoe\n")
    error = failure(data(path, user="who"))
    assert (error.code, error.field) == ("rows.no-column", "column 'who'")
    assert "in data.user" in error.remedy
    assert "zoe" not in str(error)
    error = failure(data(jsonl(tmp_path / "x.jsonl", {"text": SECRET, "label": "a"}), user="who"))
    assert error.code == "rows.no-column" and "in data.user" in error.remedy


def test_a_folder_of_text_files_names_no_users(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text(SECRET)
    error = failure(data(tmp_path, user="who"))
    assert (error.where, error.code) == ("data.user", "rows.no-users")


def test_a_row_is_left_out_and_every_other_byte_stays(tmp_path: Path) -> None:
    for name, content, number, rest in (
        ("a.csv", b'text\n"one\ntwo, ""2"""\n\nthree\n', 1, b"text\n\nthree\n"),
        ("a.csv", b'text\n"one\ntwo"\r\n\nthree', 2, b'text\n"one\ntwo"\r\n\n'),
        ("semicolons.CSV", b'n;text\n1;"one, or\ntwo"\n2;three\n', 1, b"n;text\n2;three\n"),
        (
            "header.csv",
            b'\xef\xbb\xbf"the\ntext",n\none,1\ntwo,2\n',
            1,
            b'\xef\xbb\xbf"the\ntext",n\ntwo,2\n',
        ),
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


# --- files as people have them --------------------------------------------------------------------

HEADER, PAIR = "text,label\n", (Record("a", "one"), Record("b", "two"))


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("mark.csv", "text,label\none,a\ntwo,b\n".encode("utf-8-sig"), {"encoding": "utf-8"}),
        ("mark.csv", "text,label\none,a\ntwo,b\n".encode("utf-8-sig"), {"encoding": "UTF8"}),
        ("wide.csv", "text,label\none,a\ntwo,b\n".encode("utf-16"), {"encoding": "utf-16-le"}),
        ("wide.csv", "text,label\none,a\ntwo,b\n".encode("utf-16-be"), {"encoding": "utf-16-be"}),
        ("wider.csv", "text,label\none,a\ntwo,b\n".encode("utf-32"), {}),
        ("empty names.csv", b"text,label,,,\none,a,,,\ntwo,b,,,\n", {}),
        ("excel.csv", b"sep=;\ntext;label\none;a\ntwo;b\n", {}),
        ("excel.csv", b'\xef\xbb\xbf"sep=^"\r\ntext^label\r\none^a\r\ntwo^b\r\n', {}),
        ("blanks.csv", b"text , label\none,a\ntwo,b\n", {}),
        ("semicolons and blanks.csv", b"text ; label\none;a\ntwo;b\n", {}),
        ("lines.csv", b"\n\r\ntext,label\r\none,a\r\n\r\ntwo,b", {}),
        ("old mac.csv", b"text,label\rone,a\rtwo,b\r", {}),
        (
            "mark.jsonl",
            '{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}'.encode("utf-8-sig"),
            {},
        ),
        (
            "other.jsonl",
            b'{"text": "one", "label": "a", "x": 1, "x": 2}\n{"text": "two", "label": "b"}',
            {},
        ),
        ("old mac.jsonl", b'{"text": "one", "label": "a"}\r{"text": "two", "label": "b"}\r', {}),
    ],
)
def test_reads_files_as_other_programs_write_them(
    tmp_path: Path, name: str, content: bytes, settings: dict[str, str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_records(data(tmp_path / name, **settings)).records == PAIR


@pytest.mark.parametrize(
    ("name", "content", "settings", "code", "field", "told"),
    [
        (
            "x.csv",
            f"{HEADER}{SECRET},a\n".encode("utf-8-sig"),
            {"encoding": "cp1252"},
            "rows.mark",
            "",
            "Leave data.encoding",
        ),
        (
            "x.csv",
            f"{HEADER}{SECRET},a\n".encode("utf-16"),
            {"encoding": "utf-8"},
            "rows.mark",
            "",
            "the mark of UTF-16",
        ),
        (
            "x.csv",
            f"{HEADER}{SECRET},a\n".encode("utf-16-le"),
            {},
            "rows.utf-16",
            "",
            "data.encoding: utf-16-le.",
        ),
        (
            "x.csv",
            f"{HEADER}{SECRET},é\n".encode("utf-16-be"),
            {},
            "rows.utf-16",
            "",
            "data.encoding: utf-16-be.",
        ),
        (
            "x.jsonl",
            f'{{"text": "{SECRET}"}}\n'.encode("utf-16-le"),
            {},
            "rows.utf-16",
            "",
            "data.encoding: utf-16-le.",
        ),
        ("x.csv", b"text,label\none,a\n" + b"\0" * 512, {}, "rows.zero-bytes", "line 3", "utf-16"),
        ("x.csv", b"\0\0\1\2" + b"\0" * 512, {}, "rows.zero-bytes", "line 1", "utf-16"),
        (
            "x.jsonl",
            b'{"text": "one", "label": "a"}\n' + b"\0" * 512,
            {},
            "rows.zero-bytes",
            "line 2",
            "utf-16",
        ),
        (
            "x.csv",
            gzip.compress(f"{HEADER}{SECRET},a\n".encode(), mtime=0),
            {},
            "rows.packed",
            "",
            "a gzip file",
        ),
        ("x.csv", b"PK\x03\x04 and more", {}, "rows.packed", "", "an Excel workbook"),
        ("x.csv.gz", gzip.compress(HEADER.encode(), mtime=0), {}, "rows.kind", "", ".csv"),
        ("x.csv", b"PAR1 and more PAR1", {}, "rows.packed", "", "Name it .parquet"),
        (
            "x.csv",
            f"'text','label'\n'{SECRET}','a'\n".encode(),
            {},
            "rows.single-quotes",
            "column 'text'",
            "CSV",
        ),
        (
            "x.csv",
            f'{HEADER}"one\nline",a\n"{SECRET},a\n"more",b\n'.encode(),
            {},
            "rows.csv",
            "row 2",
            "quotes",
        ),
        (
            "x.jsonl",
            f'{{"body": "{SECRET}"}}\n'.encode() * 3,
            {},
            "rows.no-column",
            "column 'text'",
            "data.text",
        ),
        (
            "x.jsonl",
            f'[{{"text": "{SECRET}", "label": "a"}}]'.encode(),
            {},
            "rows.array",
            "row 1",
            "JSON",
        ),
        (
            "x.jsonl",
            f'[\n{{"text": "{SECRET}"}}\n]'.encode(),
            {},
            "rows.several-lines",
            "row 1",
            "JSON",
        ),
        (
            "x.jsonl",
            b'{"text": "", "text": "", "label": "a"}',
            {},
            "rows.twice",
            "row 1, column 'text'",
            "one",
        ),
        (
            "x.jsonl",
            b'{"text": "1", "label": NaN}',
            {},
            "records.no-label",
            "row 1, column 'label'",
            "data.label",
        ),
        (
            "x.jsonl",
            b'{"text": "one", "label": -1}',
            {},
            "records.label",
            "row 1, column 'label'",
            "a, b",
        ),
        (
            "x.jsonl",
            b'{"text": "one", "label": true}',
            {},
            "records.kind",
            "row 1, column 'label'",
            " bool, ",
        ),
        ("x.json", b"[]", {}, "rows.kind", "", ".jsonl"),
    ],
)
def test_says_what_is_wrong_with_a_file(
    tmp_path: Path,
    name: str,
    content: bytes,
    settings: dict[str, str],
    code: str,
    field: str,
    told: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    error = failure(data(tmp_path / name, **settings))
    assert (error.code, error.field) == (code, field)
    assert told in f"{error.problem} {error.remedy}" and name in error.file


def test_a_column_that_some_rows_lack_is_told_of_its_row(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", {"label": "a"}, {"text": SECRET, "label": "a"})
    assert code_and_place(data(path)) == ("records.no-text", "row 1, column 'text'")
    lacking = jsonl(tmp_path / "y.jsonl", {"text": SECRET, "label": "c"}, {"label": "c"}, ROWS[0])
    assert read_records(data(lacking, other_labels="skip")).records == EXPECTED[:1]


def test_rows_of_any_length_are_read(tmp_path: Path) -> None:
    path, longer = tmp_path / "x.csv", (1 << 17) + 1
    path.write_text(f"text,label\n{'x' * longer},a\n")
    csv.field_size_limit(longer - 1)  # what Python begins with
    assert len(read_records(data(path)).records[0].text) == longer


def parquet(path: Path, table: pyarrow.Table, **options: Any) -> Path:
    pyarrow.parquet.write_table(table, path, **options)
    return path


def test_parquet_columns_of_every_kind_of_text(tmp_path: Path) -> None:
    texts, labels = ["one", "two"], ["a", "b"]
    for kind in (
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
    ):
        columns = [
            pyarrow.array(texts, kind),
            pyarrow.array(labels, kind),
            *[pyarrow.array([1, 2])] * 2,
        ]
        path = parquet(
            tmp_path / "x.parquet", pyarrow.table(columns, names=["text", " label", "more", "more"])
        )
        assert read_records(data(path)).records == PAIR
    # What is not read costs nothing, however wide it is.
    wide = pyarrow.table(
        [["one", "two"], ["a", "b"], *[[0, 0]] * 20_000], names=["text", "label", *["x"] * 20_000]
    )
    assert read_records(data(parquet(tmp_path / "x.parquet", wide))).records == PAIR


def test_parquet_columns_that_are_no_text_are_named(tmp_path: Path) -> None:
    for values, code, told in [
        ([SECRET.encode()], "records.kind", " bytes, "),
        ([[SECRET]], "records.kind", " list, "),
        ([{"x": SECRET}], "records.kind", " dict, "),
        ([1.5], "records.kind", " float, "),
        ([math.nan], "records.no-text", ""),
        (pyarrow.array([None], pyarrow.string()), "records.no-text", ""),
    ]:
        path = parquet(
            tmp_path / "x.parquet", pyarrow.table([values, ["a"]], names=["text", "label"])
        )
        error = failure(data(path))
        assert (error.field, error.code) == ("row 1, column 'text'", code) and told in error.problem
    twice = pyarrow.table([[SECRET], [SECRET], ["a"]], names=["text", "text", "label"])
    assert code_and_place(data(parquet(tmp_path / "x.parquet", twice))) == (
        "rows.same-columns",
        "column 'text'",
    )
    other = pyarrow.table([[SECRET], ["a"]], names=["body", "label"])
    assert code_and_place(data(parquet(tmp_path / "x.parquet", other))) == (
        "rows.no-column",
        "column 'text'",
    )


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_a_damaged_parquet_file_is_read_or_named(tmp_path: Path, compression: str) -> None:
    table = pyarrow.table(
        {"text": [f"{SECRET} {number}" for number in range(300)], "label": ["a", "b"] * 150}
    )
    path = parquet(tmp_path / "x.parquet", table, compression=compression)
    whole, chance, told = path.read_bytes(), random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.choice([len(whole), chance.randrange(1, len(whole))])])
        try:
            read_records(data(path, other_labels="skip"))
        except InputError as error:
            assert str(path) in str(error) and SECRET not in str(error)
            told += error.code == "rows.damaged"
    assert told > 10
    path.write_bytes(whole[:-1])
    cut = failure(data(path))
    assert (cut.file, cut.code) == (str(path), "rows.damaged") and "write it again" in cut.remedy


def test_a_folder_of_parts_is_one_file(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": "a", "who": "x"}, {"text": "two", "label": "b", "who": "x"}]
    for kind in ("jsonl", "parquet", "csv"):
        folder = tmp_path / kind
        folder.mkdir()
        for number, row in enumerate(rows):
            part = folder / f"part-{number}.{kind}"
            if kind == "parquet":
                parquet(part, pyarrow.Table.from_pylist([row]))
            else:
                part.write_text(
                    json.dumps(row)
                    if kind == "jsonl"
                    else f"{','.join(row)}\n{','.join(row.values())}\n"
                )
        for hidden in (f"._part-0.{kind}", f"_part.{kind}", ".part.crc"):
            (folder / hidden).write_text(SECRET)
        found = read_records(data(folder, user="who"))
        assert (found.records, found.most_per_user) == (PAIR, 2)
        (folder / "README.txt").write_text(SECRET)
        assert read_records(data(folder)).records == PAIR
        unlabelled = DataConfig(path=str(folder))
        error = failure(unlabelled)
        assert error.code == "rows.several-kinds" and f": .{kind}, .txt." in error.problem
        (folder / "other.csv" if kind != "csv" else folder / "other.jsonl").write_text(SECRET)
        assert failure(data(folder)).code == "rows.several-kinds"


def test_hidden_files_and_links_in_a_circle(tmp_path: Path) -> None:
    for name in ("a/1.txt", "a/._1.txt", ".ipynb_checkpoints/2.txt", "b/.DS_Store.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SECRET if "." in name[:3] else "one")
    (tmp_path / "a" / "1.txt").write_bytes("one".encode("utf-16"))
    assert read_records(data(tmp_path)).records == EXPECTED[:1]
    assert read_records(DataConfig(path=str(tmp_path))).records == (Record("", "one"),)
    (tmp_path / "a" / "2.txt").write_bytes(b"text\0" * 9)
    error = failure(data(tmp_path))
    assert error.code == "rows.zero-bytes" and error.file.endswith("2.txt")
    (tmp_path / "a" / "2.txt").unlink()
    (tmp_path / "a" / "2.txt").symlink_to("2.txt")
    assert "2.txt is no" in failure(data(tmp_path)).problem
    (tmp_path / "circle").symlink_to("circle")
    assert "nothing is there" in failure(data(tmp_path / "circle")).problem


# --- labels that are numbers of classes -----------------------------------------------------------


def hubs(monkeypatch: pytest.MonkeyPatch, numbers: list[int | None], classes: list[str]) -> None:
    """A data set of the hub, whose labels are these numbers of classes."""
    kind = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=classes)}
    )
    table = pyarrow.table(
        {
            "text": [f"{SECRET} {number}" for number in numbers],
            "label": pyarrow.array(numbers, "int64"),
        }
    )
    found = datasets.Dataset(
        table.replace_schema_metadata(), info=datasets.DatasetInfo(features=kind)
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: found)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (-1, "records.no-label"),
        (None, "records.no-label"),
        (-2, "rows.class"),
        (2, "rows.class"),
        (1 << 40, "rows.class"),
    ],
)
def test_rejects_a_row_without_a_class(
    monkeypatch: pytest.MonkeyPatch, number: int | None, code: str
) -> None:
    """Python reads names[-1] as the last one: such a row was a record of the last label."""
    hubs(monkeypatch, [0, number], ["a", "b"])
    config = DataConfig(dataset="org/name", labels=("a", "b"))
    error = failure(config)
    assert (error.file, error.code) == ("org/name (train)", code) and error.field.startswith(
        "row 2"
    )
    assert str(1 << 40) not in str(error)
    skipping = config.model_copy(update={"other_labels": "skip"})
    if code == "records.no-label":
        assert [record.label for record in read_records(skipping).records] == ["a"]
    else:
        assert failure(skipping).code == code


def test_rows_without_a_label_are_skipped_where_others_are(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text,label\none,a\ntwo,\nthree, \n")
    assert code_and_place(data(path)) == ("records.no-label", "row 2, column 'label'")
    assert read_records(data(path, other_labels="skip")).records == EXPECTED[:1]


def test_a_data_set_with_several_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    for config, text in (("first", "one"), ("second", "two")):
        (folder / config).mkdir(parents=True)
        (folder / config / "x.csv").write_text(f"text,label\n{text},a\n")
    listed = "".join(
        f"- config_name: {config}\n  data_files: {config}/*.csv\n" for config in ("first", "second")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n")

    def config(**fields: str) -> DataConfig:
        return DataConfig(dataset=str(folder), labels=("a",), **fields)

    assert read_records(config(config="second")).records == (Record("a", "two"),)
    for asked, code, known in (
        ({}, "rows.configuration", "first, second"),
        ({"config": "third"}, "rows.configuration", "first, second"),
        ({"config": "first", "split": "test"}, "rows.split", "train"),
    ):
        error = failure(config(**asked))
        assert error.code == code and f" {known}" in error.problem
    with pytest.raises(InputError, match=r"^clustering\.public: ") as caught:
        read_texts(f"dataset:{folder}", "text", "clustering.public", "clustering.public_text")
    assert caught.value.code == "rows.configuration" and "data." not in str(caught.value)
    with pytest.raises(ValidationError, match="is for dataset"):
        data(folder, config="first")
    datasets.Dataset.from_dict({"text": ["one"], "label": ["a"]}).save_to_disk(
        str(tmp_path / "saved")
    )
    saved = DataConfig(dataset=str(tmp_path / "saved"), labels=("a",))
    assert failure(saved).code == "rows.saved-to-disk"


def test_no_encoding_is_asked_for_where_none_can_be_named(tmp_path: Path) -> None:
    for content in (
        "text\né\n".encode("cp1252"),
        "text\né\n".encode("utf-16-le"),
        b"text\none\n\0\0",
    ):
        (tmp_path / "x.csv").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_texts(str(tmp_path / "x.csv"), "text", "--public", "--public-text")
        assert "to UTF-8" in caught.value.remedy and "data." not in str(caught.value)


def test_a_row_is_left_out_behind_what_excel_writes_first(tmp_path: Path) -> None:
    for content, rest in (
        (b"sep=;\na;b\n1;2\n3;4\n", b"sep=;\na;b\n3;4\n"),
        (b"\n\na,b\n1,2\n3,4\n", b"\n\na,b\n3,4\n"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        write_without_row(tmp_path / "a.csv", 1, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == rest
