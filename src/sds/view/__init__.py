"""A local web page to look at a dataset: what `sds view` serves.

Comes in: a function that opens the dataset for a query and a seed. Goes out: a page on loopback, behind a token, that
shows rows, files, orders, and what the transforms make of a sample. Only the rows of a page are read.

    with Viewer(Gallery(Shelf(open_dataset))) as viewer:   # server, gallery, shelf
        print(viewer.url)
        viewer.serve()
"""
