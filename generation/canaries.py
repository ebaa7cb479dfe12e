"""Made-up records whose secret coins audit the released run: drawn before it, placed as any record.

A canary's text is drawn anew until the rule's own hash sends it, in every round, to a batch that no
other canary is in: one that is generated, in one round at least. So its places depend on the key
and on that text alone, as a record's do, and whether it is in the data moves nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, islice

from dpaudit.generation.config import Config
from dpaudit.generation.partition import Layout, Partition, PlacedCanary
from dpaudit.generation.records import Record
from dpaudit.runs import Canaries, Canary, InputError, RunReader
from dpaudit.runs.canaries import SALT_BYTES

#: Three of these, over and over, are a canary's text: a model that is shown it goes on with them,
#: and no other text does. Words that every tokenizer has, and nobody's.
_WORDS = """
acorn amber anchor apron arrow badger bamboo banjo barley basil beacon beetle birch bison bonnet bramble bronze
bucket butter button cactus candle canoe canyon carrot cedar chalk cherry cliff clover cobalt cobra comet copper
coral cotton crane cricket crystal daisy dolphin donkey dragon eagle ember falcon feather fennel ferry fiddle
flute fossil garlic geyser ginger glacier goblet granite hammer harbour hazel heron honey indigo iris island
ivory jaguar jasmine jigsaw juniper kettle kiwi ladder lagoon lantern lemon lilac lobster locust magnet mango
maple marble meadow mirror moss mustard nectar needle nutmeg oak oasis olive onyx orchid otter oyster paddle
panther parsley pebble pepper pickle pigeon pillow pine plum pony poppy prism pumpkin quail quartz quilt rabbit
raven reef ribbon robin rocket saddle saffron salmon sapphire satin scarlet seal shovel silver spider spruce
squid stork sugar sunset teapot thistle thunder tiger timber toad topaz tulip tunnel turnip turtle umbrella
valley vanilla velvet violet walnut walrus willow window winter wolf yarn zebra zinc
"""  # noqa: E501
WORDS = tuple(_WORDS.split())
WORDS_EACH, REPEATED = 3, 12


def canaries_of(config: Config, layout: Layout, begun: RunReader | None) -> Canaries | None:
    """Draw a new run's canaries, read a begun run's, or return None if a config asks for none.

    Raises:
        InputError: the run has begun with other ones.
    """
    wanted = config.privacy.canaries
    if begun is None:
        return None if wanted is None else _draw_canaries(layout, wanted)
    committed = begun.manifest.canaries
    if wanted != (None if committed is None else committed.count):
        problem = "the run there was started with another privacy.canaries."
        raise InputError(begun.name, problem, "Restore the config, or name a new directory.")
    return None if committed is None else begun.canaries()


def included(canaries: Canaries | None) -> Iterable[Record]:
    """Return the canaries that are in the data."""
    if canaries:
        return [_record(canary) for canary in canaries.canaries if canary.included]
    return []


def with_canaries(parts: Partition, canaries: Canaries | None, layout: Layout) -> Partition:
    """Return the partition of data with the included canaries.

    It tells which batch has which canary, in or out.
    """
    if canaries is None:
        return parts
    placed = {
        batch: PlacedCanary(number, (_record(canary),), canary.included)
        for number, canary in enumerate(canaries.canaries)
        for batch in layout.batches_of(canary)
    }
    return replace(
        parts,
        batches=parts.batches.changed(lambda batch: replace(batch, canary=placed.get(batch.id))),
    )


def _record(canary: Canary) -> Record:
    return Record(canary.label, canary.text)


def _draw_canaries(layout: Layout, count: int) -> Canaries:
    """Draw `count` canaries, equally many of each label up to one, each with a coin of its own."""
    draw, labels = secrets.SystemRandom(), list(layout.labels)
    draw.shuffle(labels)
    taken: set[int] = set()
    drawn = []
    for label in islice(cycle(labels), count):
        batches: tuple[int, ...] = ()
        while not batches or not taken.isdisjoint(batches):
            text = " ".join(draw.sample(WORDS, WORDS_EACH) * REPEATED)
            canary = Canary(label=label, text=text, included=False)
            batches = layout.batches_of(canary)
        taken.update(batches)
        drawn.append(canary.model_copy(update={"included": bool(secrets.randbits(1))}))
    return Canaries(salt=secrets.token_hex(SALT_BYTES), canaries=tuple(drawn))
