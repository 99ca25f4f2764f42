"""Files that exporters write: `output.py` is a file that grows, `trace_file.py` and `trace_series.py` are traces of any format, and
`chrome_file.py`, `perfetto_file.py` and `parquet_rows.py` are the formats.
"""
