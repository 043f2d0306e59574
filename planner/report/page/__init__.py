"""One self-contained page about a plan, for a browser, a phone, a printer or a screen reader.

Everything is in the file: shapes are HTML and SVG that the template draws, and it loads nothing, which its content
security policy holds it to. What comes out of files is escaped by the template engine.
"""
