"""`hvdcloud setup`: what a Google Cloud project needs, made by Terraform from the module terraform/.

An installed hvdcloud has the module in module/ here.
"""
