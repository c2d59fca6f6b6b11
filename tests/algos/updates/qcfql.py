from tests.algos import plain
from tests.algos.updates import fql


class Plain(fql.Plain):
    SETTINGS = plain.chosen(
        chunk_length=2, hidden=(3,), distillation_weight=0.5, flow_steps=2, discount=0.9
    )
    UPDATES = 3
