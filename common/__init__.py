"""What every command needs: the command line, errors in one line, files written whole, devices."""
