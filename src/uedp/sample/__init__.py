"""The bundled corpus: invented people and their messages."""
