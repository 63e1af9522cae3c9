"""Result records to tables, plots and one HTML page. Knows files and plain data only."""
