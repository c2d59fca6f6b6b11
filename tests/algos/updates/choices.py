"""Off-policy learning from logged choices: IPS and DR."""

import numpy as np

from tests.algos.updates import common as plain


class IPS(plain.Plain):
    SETTINGS = plain.chosen(baseline=0.3, max_weight=2.5, entropy_weight=0.1)
    CASES = ({}, {"objective": "direct"}, {"objective": "dr"})

    def start(self):
        self.policy, self.regression = self.adam("policy"), self.adam("regression")

    def update(self, batch):
        one, config = plain.in_units(self.scaling, batch), self.config
        chance = np.exp(batch.infos["action_log_probs"].numpy().ravel())
        rows = range(len(one.r))
        expected = plain.network(self.of("regression"), one.s).copy()

        def value():
            pi = np.exp(plain.log_softmax(plain.network(self.of("policy"), one.s)))
            total = 0.0
            for row in rows:
                action, direct = one.a[row], float(pi[row] @ expected[row])
                weight = min(pi[row, action] / chance[row], config.max_weight)
                total += {
                    "ips": weight * (one.r[row] - config.baseline),
                    "direct": direct,
                    "dr": weight * (one.r[row] - expected[row, action]) + direct,
                }[config.objective]
            return total / len(rows)

        def entropy():
            logs = plain.log_softmax(plain.network(self.of("policy"), one.s))
            return float(-np.mean((np.exp(logs) * logs).sum(-1)))

        def errors():
            found = plain.network(self.of("regression"), one.s)
            return float(np.mean([(found[row, one.a[row]] - one.r[row]) ** 2 for row in rows]))

        metrics = {"policy/value": value(), "policy/entropy": entropy(), "regression/loss": errors()}
        plain.step_together(
            (self.policy, lambda: -value() - config.entropy_weight * entropy()), (self.regression, errors)
        )
        return metrics


class DR(IPS):
    """As IPS, whose objective it chooses."""

    CASES = ({},)
