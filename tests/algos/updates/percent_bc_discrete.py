from tests.algos.updates.bc_discrete import Plain as Plain
