"""The dashboard: populations in a browser, read-only, on loopback.

    guard.py         checks of token, host and method; security headers
    app.py           the routes                     pages.py         what each page shows      compare.py  two runs
    runs.py          a population file being followed  lineage_view.py  the lineage, collapsed to what improved
    formatting.py    hostile text made harmless, conversations of agents among it
    templates/ static/   everything the browser gets; uPlot is bundled (MIT, its licence beside it)

Everything shown comes from a file that candidates and models have written into: it is text, never markup, and there is
no way from here to the judge, the operators or the engine (an import contract holds that).
"""
