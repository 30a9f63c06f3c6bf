from tests.unit.config.golden import rewrite

rewrite()
