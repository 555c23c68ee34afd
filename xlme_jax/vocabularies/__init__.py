"""Vocabularies of many languages: VoCap's candidates, allocation and merged model; measures."""
