from tests.algos.updates.bc import Plain as Plain
