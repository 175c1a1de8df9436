"""`build --remote`: Google Cloud Build carries out an image's plan, for slow uplinks and laptops of another make.

The contexts go to the bucket as one archive, under a name that stands for their content. One request holds the steps
whose images the registry does not have: changed requirements do not compile Horovod again, and nothing is sent twice.
"""
