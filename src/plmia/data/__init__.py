"""What is audited: data sets, published archives, and how files are read and written safely."""
