"""Mutation campaigns: would the tests of a unit notice a fault in its netlist?"""
