"""The evidence behind the defaults: small programs that train many runs, resume and draw."""
