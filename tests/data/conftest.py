from fake_downloads import internet  # noqa: F401
from hub_server import the_hub  # noqa: F401
