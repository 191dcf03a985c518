"""`matheron playground`: a local page on which one sees a draw come about, and moves what it depends on."""
