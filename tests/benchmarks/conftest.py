from tests.integration.conftest import folder

__all__ = ["folder"]
