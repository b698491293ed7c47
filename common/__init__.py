"""Every command reads its command line, says its errors, writes its files and knows its devices by this."""
