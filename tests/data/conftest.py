from fake_downloads import internet  # noqa: F401
