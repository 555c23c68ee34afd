"""Results quoted from the papers, a folder for each paper and a file for each of its tables.

A number has the paper's digits, two numbers in a cell are F1 and exact match unless the file says
otherwise, shares are in percent, and a dash means that the paper gives no value.
"""
