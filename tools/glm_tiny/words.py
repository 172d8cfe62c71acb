"""Words and facts the corpus is made of."""

from __future__ import annotations

NAMES = """
Anna Ben Carla David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor
""".split()  # noqa: SIM905
THINGS = """
apple ball bell boat book bottle box bread brush candle car chair clock coat coin cup desk door drum egg
fish flag flower glass hammer hat house key kite lamp leaf letter map mirror paper pen phone plate ring
rope shoe spoon star stone table tree wheel window wood
""".split()  # noqa: SIM905
COLOURS = """
red blue green black white yellow brown grey pink purple
""".split()  # noqa: SIM905
PLACES = """
river hill garden market station school bridge castle forest harbour island kitchen library park
""".split()  # noqa: SIM905
ADJECTIVES = """
old new small large quiet bright slow quick warm cold heavy light round empty
""".split()  # noqa: SIM905
VERBS = """
found painted carried opened closed sold bought moved cleaned lost kept hid
""".split()  # noqa: SIM905
PEOPLE = """
farmer teacher doctor baker sailor driver painter singer writer builder nurse guard
""".split()  # noqa: SIM905

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo",
    "China": "Beijing", "Egypt": "Cairo", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Austria": "Vienna", "Poland": "Warsaw", "Portugal": "Lisbon", "Ireland": "Dublin", "Russia": "Moscow",
    "Canada": "Ottawa", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi", "India": "New Delhi",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "left": "right", "day": "night", "open": "closed",
    "fast": "slow", "full": "empty", "old": "young", "wet": "dry", "high": "low", "early": "late",
    "light": "dark", "hard": "soft", "rich": "poor", "long": "short",
}  # fmt: skip
FACTS = {
    "What colour is the sky on a clear day?": "Blue",
    "What colour is grass?": "Green",
    "What colour is a ripe banana?": "Yellow",
    "How many legs does a spider have?": "Eight",
    "How many days are in a week?": "Seven",
    "How many months are in a year?": "Twelve",
    "What is frozen water called?": "Ice",
    "Which planet do we live on?": "Earth",
    "Which star is closest to us?": "The sun",
    "Which animal barks?": "The dog",
    "Which animal says meow?": "The cat",
    "What do bees make?": "Honey",
    "What is the first letter of the alphabet?": "A",
    "What is the last letter of the alphabet?": "Z",
}
COMMON = """
about after again all also always another any as at back because before best between bicycle body both
brain brother brown can child city come computer country could dance does dog down dream drink each earth
eat end even every example eye father fire first follow food foot four fox friend fruit future game get
give go good government great hand have health heart help history home hope hour house how idea if
important internet jumps just keep king know language last law lazy learn life like list little live long
look love machine make man many meaning milk mind moment money month moon more morning mother mountain
much music must nature never next nice night no nothing number ocean often one only other our over people
person physics place plan plant play please poem point power president problem program question rain read
reason recipe rest right road rock round run same say science sea second see sentence ship short should
show sister sleep snow so some song soon sort space speak sport start stop street strong student summer
sun sure take talk teach tell than thank that them then theory these they thing think three through time
today together tomorrow travel try turn two under until up use very visit voice wait walk want war was
water way week well were when where which while who why wind winter with without woman word work world
would wrong year yes yesterday you your
""".split()  # noqa: SIM905
