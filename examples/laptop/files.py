"""Make the laptop example's files in the working folder, from the Hugging Face hub.

They are agnews_train.csv, agnews_test.csv and dbpedia_public.csv.
"""

from datasets import load_dataset

for name, split, rows, text, file in (
    ("ag_news", "train", 19928, "text", "agnews_train.csv"),
    ("ag_news", "test", 7600, "text", "agnews_test.csv"),
    ("dbpedia_14", "train", 14000, "content", "dbpedia_public.csv"),
):
    data = load_dataset(f"fancyzhx/{name}", split=split).shuffle(seed=0).select(range(rows))
    frame = data.to_pandas().assign(label=data.features["label"].int2str(data["label"]))
    frame.to_csv(file, columns=["label", text], header=["label", "text"], index=False)
