"""Gin configurations, installed beside the package so that `gin_configs/...` is found anywhere."""
