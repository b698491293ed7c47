"""Small programs that train many small runs, resume and draw: the evidence behind the defaults."""
