"""The dashboard: populations in a browser, read-only, on loopback.

    guard.py         checks of token, host and method; security headers
    app.py           the routes                       pages.py      what each page shows      compare.py  two runs
    runs.py          a population file being followed  plots.py     numbers for the plots     intervals.py  times
    formatting.py    hostile text made harmless        diffs.py      sources, highlighted and compared
    conversation.py  what an agent was told and said   lineage_view.py the lineage, collapsed to what improved
    templates/ static/   everything the browser gets; uPlot is bundled (MIT, its licence beside it)

Everything shown comes from a file that candidates and models have written into: it is text, never markup, and there is
no way from here to the judge, the operators or the engine (an import contract holds that).
"""
