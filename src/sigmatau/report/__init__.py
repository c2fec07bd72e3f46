"""Reports over result folders: tables beside the paper's, figures, and one page to look at."""
