from tests.unit.flows.golden import rewrite

rewrite()
