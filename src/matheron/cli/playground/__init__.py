"""The command `matheron playground`: a local page that shows how a draw is made, with sliders for its settings."""
